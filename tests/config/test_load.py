"""The resolved configuration: precedence, origins, and errors that say where."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.config.load import SettingOrigin, flat_values, load, stray_variables
from hermes.config.settings import Settings
from hermes.errors import ConfigError, HermesError, UsageError
from tests.config.conftest import Home


def test_without_any_file_everything_is_a_default_and_nothing_is_created(tmp_path: Path) -> None:
    config = load(environ={"HERMES_HOME": str(tmp_path / "none")})
    assert config.settings == Settings()
    assert set(config.origins.values()) == {SettingOrigin.DEFAULT}
    assert set(config.origins) == set(flat_values(config.settings))
    assert not (tmp_path / "none").exists()


def test_flags_beat_the_environment_which_beats_dotenv_which_beats_the_file(home: Home) -> None:
    file = "limits: {max_turns: 1, max_tokens: 1, timeout_s: 1}\nsandbox: {memory_mb: 100, cpu_s: 1}\n"
    dotenv = "HERMES_LIMITS__MAX_TURNS=2\nHERMES_LIMITS__MAX_TOKENS=2\nHERMES_LIMITS__TIMEOUT_S=2\n"
    environ = home(file, dotenv, HERMES_LIMITS__MAX_TURNS="3", HERMES_LIMITS__MAX_TOKENS="3")
    config = load({"limits.max_turns": 4}, environ)
    limits, origins = config.settings.limits, config.origins
    assert (limits.max_turns, origins["limits.max_turns"]) == (4, SettingOrigin.FLAG)
    assert (limits.max_tokens, origins["limits.max_tokens"]) == (3, SettingOrigin.ENVIRONMENT)
    assert (limits.timeout_s, origins["limits.timeout_s"]) == (2, SettingOrigin.DOTENV)
    assert (config.settings.sandbox.memory_mb, origins["sandbox.memory_mb"]) == (100, SettingOrigin.FILE)
    assert origins["sandbox.backend"] is SettingOrigin.DEFAULT


def test_variables_are_read_as_the_key_they_set_would_be_written(home: Home) -> None:
    environ = home(
        HERMES_MODEL="vllm/123",
        HERMES_SYSTEM_PROMPT="Be brief: yes # really",
        HERMES_SANDBOX__NETWORK="true",
        HERMES_TOOLSETS="file, web",
        HERMES_APPROVAL__ALLOW="[git status, 'ls *']",
        HERMES_PROVIDERS__LAB__MAX_RETRIES="2",
        HERMES_PROVIDERS__LAB="{base_url: 'http://lab:1/v1', max_retries: 0}",
        HERMES_LIMITS__MAX_TOKENS="",
    )
    settings = load(environ=environ).settings
    assert settings.model == "vllm/123"
    assert settings.system_prompt == "Be brief: yes # really"
    assert settings.sandbox.network is True
    assert settings.toolsets == ("file", "web")
    assert settings.approval.allow == ("git status", "ls *")
    assert (settings.providers["lab"].base_url, settings.providers["lab"].max_retries) == (
        "http://lab:1/v1",
        2,
    )
    assert settings.limits.max_tokens is None


def test_the_process_environment_wins_over_dotenv_for_keys_too(home: Home) -> None:
    config = load(
        environ=home(env="A_API_KEY=from-the-file\nB_API_KEY=from-the-file\n", A_API_KEY="from-outside")
    )
    assert config.environ["A_API_KEY"] == "from-outside"
    assert config.environ["B_API_KEY"] == "from-the-file"
    assert config.variable_origin("A_API_KEY") is SettingOrigin.ENVIRONMENT
    assert config.variable_origin("B_API_KEY") is SettingOrigin.DOTENV
    assert config.variable_origin("C_API_KEY") is None
    assert "from-outside" not in repr(config) and "from-the-file" not in repr(config)


def test_openai_base_url_is_the_base_url_of_openai(home: Home) -> None:
    config = load(
        environ=home("providers: {openai: {max_retries: 1}}", OPENAI_BASE_URL="http://127.0.0.1:9/v1/")
    )
    profile = config.settings.providers["openai"]
    assert (profile.base_url, profile.max_retries, profile.key_env) == (
        "http://127.0.0.1:9/v1",
        1,
        "OPENAI_API_KEY",
    )
    assert config.origins["providers.openai.base_url"] is SettingOrigin.ENVIRONMENT
    assert config.origins["providers.openai.max_retries"] is SettingOrigin.FILE


def test_an_entry_for_a_built_in_provider_keeps_the_rest_of_its_profile(home: Home) -> None:
    config = load(environ=home("providers:\n  openrouter:\n    max_concurrency: 3\n"))
    profile = config.settings.providers["openrouter"]
    assert profile.base_url == "https://openrouter.ai/api/v1"
    assert profile.max_concurrency == 3
    assert config.origins["providers.openrouter.base_url"] is SettingOrigin.DEFAULT


def test_a_section_whose_lines_are_all_commented_out_is_no_error(home: Home) -> None:
    assert load(environ=home("sandbox:\n  # backend: docker\nproviders:\n")).settings == Settings()


def test_names_inside_a_mapping_may_contain_dots_and_slashes(home: Home) -> None:
    config = load(environ=home("prices:\n  openrouter/a/b-4.6: {input: 3, output: 15}\n"))
    assert config.settings.prices["openrouter/a/b-4.6"].output == 15
    assert config.origins["prices.openrouter/a/b-4.6.input"] is SettingOrigin.FILE


BROKEN = [
    ("model: [a\n", "config.yaml:2:1: while parsing a flow sequence"),
    ("a: b: c\n", "config.yaml:1:5: mapping values are not allowed here"),
    ("model: x/y\nmodel: x/z\n", "config.yaml:2:1: the key 'model' is set twice"),
    ("sandbox:\n  backend: a\n  backend: b\n", "config.yaml:3:3: the key 'sandbox.backend' is set twice"),
    ("sandbox:\n  bakend: docker\n", "config.yaml:2:3: unknown setting 'sandbox.bakend'"),
    ("memory_mb: 100\n", "config.yaml:1:1: unknown setting 'memory_mb'"),
    (
        "sandbox:\n  memory_mb: lots\n",
        "config.yaml:2:3: sandbox.memory_mb: expected a whole number, got the text",
    ),
    (
        "sandbox: {network: yes}\n",
        "config.yaml:1:11: sandbox.network: expected true or false, got the text 'yes'",
    ),
    ("sandbox: {memory_mb: 1}\n", "sandbox.memory_mb: expected at least 64, got the number 1"),
    ("limits: {timeout_s: .inf}\n", "limits.timeout_s: expected a finite number"),
    ("sandbox: docker\n", "config.yaml:1:1: sandbox: expected a mapping, got the text 'docker'"),
    ("toolsets: web\n", "toolsets: expected a list, got the text 'web'"),
    ("toolsets: [file, 3]\n", "config.yaml:1:1: toolsets[1]: expected text, got the number 3"),
    ("model: 2024-01-01\n", "config.yaml:1:8: 'model' is a timestamp"),
    ("1: x\n", "config.yaml:1:1: expected a name as key"),
    ("- model\n", "config.yaml: expected settings as 'key: value' lines"),
    ("a: 1\n---\nb: 2\n", "config.yaml:2:1:"),
    ("a: !!python/object:os.system x\n", "config.yaml:1:4:"),
    ("a: &x [*x]\n", "config.yaml:1:4: an alias refers to a value around it"),
    ("a: \x07\n", "config.yaml:1: a character that YAML does not allow"),
    ("a: " + "[" * 1200 + "\n", "more than 64 levels of values in values"),
    ("web: {search_backend: gogle}\n", "web.search_backend: expected 'auto', 'searxng', 'brave' or 'tavily'"),
    ("providers:\n  lab: {max_retries: 1}\n", "config.yaml:2:3: providers.lab.base_url is required"),
    ("providers: {lab: {base_url: 'lab:8000'}}\n", "base_url: expected an address such as http://"),
    ("mcp_servers: {fs: {args: []}}\n", "mcp_servers.fs: expected either a command or a url"),
]


@pytest.mark.parametrize(("text", "complaint"), BROKEN)
def test_a_broken_file_is_named_with_line_column_and_key(home: Home, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ=home(text))
    assert complaint in caught.value.message
    assert caught.value.hint


def test_near_misses_are_named(home: Home) -> None:
    for text, near in (
        ("sandbox: {bakend: x}", "sandbox.backend"),
        ("memory_mb: 5", "sandbox.memory_mb"),
        ("modle: x/y", "model"),
        ("providers: {lab: {base_url: 'http://x', time_out_s: 3}}", "providers.lab.timeout_s"),
    ):
        with pytest.raises(ConfigError) as caught:
            load(environ=home(text))
        assert caught.value.hint == f"did you mean {near}?"


def test_several_problems_are_counted(home: Home) -> None:
    with pytest.raises(ConfigError, match=r"\(and 2 more\)"):
        load(environ=home("a: 1\nb: 2\nc: 3\n"))


def test_a_key_in_the_wrong_place_is_refused_without_being_repeated(home: Home) -> None:
    key = "sk-or-v1-0123456789abcdef"
    texts = (
        f"providers: {{lab: {{base_url: 'http://x', api_key: {key}}}}}",
        f"providers: {{lab: {{base_url: 'http://x', key_env: {key}}}}}",
        f"providers: {{lab: {{base_url: 'x://user:{key}@h'}}}}",
        f"openrouter_api_key: {key}",
        f"openrouter_api_key: {key}\nopenrouter_api_key: {key}\n",
    )
    for text in texts:
        with pytest.raises(ConfigError) as caught:
            load(environ=home(text))
        assert key not in caught.value.message + caught.value.hint


def test_a_bad_variable_is_named_and_so_is_the_file_it_stands_in(home: Home, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"environment variable HERMES_SANDBOX__CPU_S: sandbox.cpu_s: expected"
    ):
        load(environ=home(HERMES_SANDBOX__CPU_S="many"))
    with pytest.raises(ConfigError, match=r"\.env: HERMES_SANDBOX__CPU_S: sandbox.cpu_s: expected"):
        load(environ=home(env="HERMES_SANDBOX__CPU_S=many\n"))
    with pytest.raises(ConfigError, match="HERMES_SANDBOX__CPUS sets no known setting") as caught:
        load(environ=home(env="", HERMES_SANDBOX__CPUS="1"))
    assert caught.value.hint == "did you mean HERMES_SANDBOX__CPU_S?"
    with pytest.raises(ConfigError, match="HERMES_MODL sets no known setting"):
        load(environ=home(env="HERMES_MODL=x/y\n"))
    with pytest.raises(ConfigError, match="HERMES_HOME cannot be set here"):
        load(environ=home(env=f"HERMES_HOME={tmp_path}/other\n"))


def test_another_programs_variable_is_left_alone_and_can_be_listed(home: Home) -> None:
    environ = home(HERMES_THEME="dark", HERMES_API_TOKEN="0123456789")
    assert load(environ=environ).settings == Settings()
    assert stray_variables(environ) == ["HERMES_THEME"]


def test_an_unknown_flag_key_is_a_usage_error(home: Home) -> None:
    with pytest.raises(UsageError, match=r"unknown setting 'sandbox.bakend'"):
        load({"sandbox.bakend": "x"}, home())
    with pytest.raises(
        ConfigError, match=r"flag for limits.max_turns: limits.max_turns: expected at least 1"
    ):
        load({"limits.max_turns": 0}, home())


def test_a_home_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(HermesError) as caught:
            load(environ={"HERMES_HOME": str(tmp_path / place)})
        assert str(tmp_path / place) in caught.value.message
        assert "HERMES_HOME" in caught.value.hint


def test_a_torn_dotenv_is_named_by_line(home: Home) -> None:
    with pytest.raises(ConfigError, match=r"\.env:2: expected NAME=VALUE"):
        load(environ=home(env="A_KEY=1\nOPENROU"))
