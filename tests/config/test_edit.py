"""Changes to the user's files: validated, whole, private, and never lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hermes.config.edit import set_value, unset_value
from hermes.config.load import load
from hermes.errors import ConfigError, HermesError


def read(home: Path, name: str = "config.yaml") -> str:
    return (home / name).read_text()


def test_dotted_keys_go_to_the_file_and_capital_names_to_dotenv(tmp_path: Path) -> None:
    home = tmp_path / "new"
    set_value(home, "sandbox.backend", "docker")
    set_value(home, "OPENROUTER_API_KEY", "sk-or 1")
    assert read(home) == "sandbox:\n  backend: docker\n"
    assert read(home, ".env") == "OPENROUTER_API_KEY='sk-or 1'\n"
    config = load(environ={"HERMES_HOME": str(home)})
    assert config.settings.sandbox.backend == "docker"
    assert config.environ["OPENROUTER_API_KEY"] == "sk-or 1"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (home, *home.iterdir())}
    assert modes == {"new": 0o700, "config.yaml": 0o600, ".env": 0o600, ".config.lock": 0o600}


def test_every_kind_of_value_can_be_typed(tmp_path: Path) -> None:
    for key, text in {
        "limits.timeout_s": "90",
        "sandbox.network": "true",
        "toolsets": "file,web",
        "system_prompt": "yes: # no",
        "prices.openrouter/a/b-4.6": "{input: 3, output: 15}",
        "prices.openrouter/a/b-4.6.cached_input": "0.3",
        "providers.lab.base_url": "http://lab:1/v1",
        "providers.lab.extra_body.provider.order": "[x, y]",
        "limits.max_tokens": "null",
    }.items():
        set_value(tmp_path, key, text)
    settings = load(environ={"HERMES_HOME": str(tmp_path)}).settings
    assert settings.limits.timeout_s == 90
    assert settings.sandbox.network is True
    assert settings.toolsets == ("file", "web")
    assert settings.system_prompt == "yes: # no"
    assert settings.prices["openrouter/a/b-4.6"].cached_input == 0.3
    assert settings.providers["lab"].extra_body == {"provider": {"order": ["x", "y"]}}
    assert settings.limits.max_tokens is None


@pytest.mark.parametrize(
    ("key", "text", "complaint"),
    [
        ("sandbox.memory_mb", "lots", "sandbox.memory_mb: expected a whole number, got the text 'lots'"),
        ("sandbox.memory_mb", "[1", "sandbox.memory_mb: the value is not readable as YAML"),
        ("sandbox.bakend", "x", "unknown setting 'sandbox.bakend'"),
        ("providers.lab.base_ur", "http://x", "unknown setting 'providers.lab.base_ur'"),
        ("providers.lab.max_retries", "1", "providers.lab.base_url is required"),
        ("HERMES_SANDBOX__BACKEND", "docker", "stands for a setting"),
        ("HERMES_HOME", "/x", "decides where .env is"),
        ("OPENAI_BASE_URL", "localhost", "OPENAI_BASE_URL: expected an address"),
    ],
)
def test_a_bad_change_is_refused_and_nothing_is_written(
    tmp_path: Path, key: str, text: str, complaint: str
) -> None:
    (tmp_path / "config.yaml").write_text("model: hermes/smollm2 # mine\n")
    with pytest.raises(HermesError) as caught:
        set_value(tmp_path, key, text)
    assert complaint in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2
    assert read(tmp_path) == "model: hermes/smollm2 # mine\n"
    assert not (tmp_path / ".env").exists()


def test_unset_gives_the_default_back_and_says_whether_there_was_anything(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("# top\nsandbox:\n  backend: docker\n# end\n")
    (tmp_path / ".env").write_text("# keys\nA_KEY=1\n")
    assert unset_value(tmp_path, "sandbox.backend")
    assert not unset_value(tmp_path, "sandbox.backend")
    assert unset_value(tmp_path, "A_KEY")
    assert not unset_value(tmp_path, "A_KEY")
    assert (read(tmp_path), read(tmp_path, ".env")) == ("# top\n# end\n", "# keys\n")
    with pytest.raises(ConfigError, match="unknown setting"):
        unset_value(tmp_path, "sandbox.bakend")


def test_a_file_with_several_mistakes_can_be_mended_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("modle: x\nsandbox:\n  memory_mb: lots\n  bakend: y\n")
    set_value(tmp_path, "sandbox.memory_mb", "128")
    assert unset_value(tmp_path, "modle")
    assert unset_value(tmp_path, "sandbox.bakend")
    assert load(environ={"HERMES_HOME": str(tmp_path)}).settings.sandbox.memory_mb == 128


def test_what_others_need_cannot_be_unset(tmp_path: Path) -> None:
    text = "providers:\n  lab:\n    base_url: http://x\n    max_retries: 1\n"
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match="base_url is required"):
        unset_value(tmp_path, "providers.lab.base_url")
    assert read(tmp_path) == text
    assert unset_value(tmp_path, "providers.lab")
    assert read(tmp_path) == ""


def test_a_torn_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A_KEY='sk-1\n")
    (tmp_path / "config.yaml").write_text("model: [x\n")
    for key in ("B_KEY", "A_KEY", "model"):
        with pytest.raises(ConfigError):
            set_value(tmp_path, key, "x/y")
        with pytest.raises(ConfigError):
            unset_value(tmp_path, key)
    assert (read(tmp_path, ".env"), read(tmp_path)) == ("A_KEY='sk-1\n", "model: [x\n")


def test_two_processes_that_change_settings_at_once_lose_nothing(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from hermes.config.edit import set_value\n"
        "home, who = Path(sys.argv[1]), sys.argv[2]\n"
        "for n in range(10):\n"
        "    set_value(home, f'prices.{who}{n}', '{input: 1, output: 2}')\n"
        "    set_value(home, f'{who.upper()}_{n}_KEY', 'x')\n"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), who]) for who in ("a", "b", "c")
    ]
    assert [worker.wait(timeout=60) for worker in workers] == [0, 0, 0]
    config = load(environ={"HERMES_HOME": str(tmp_path)})
    assert len(config.settings.prices) == 30
    assert len(config.dotenv) == 30
