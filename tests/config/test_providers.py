"""From model names to targets."""

from __future__ import annotations

import pytest

from hermes.config.providers import profiles, resolve_model
from hermes.config.settings import ProviderSettings, Settings
from hermes.errors import ConfigError, UsageError

KEYS = {"OPENROUTER_API_KEY": "or-key-123", "OPENAI_API_KEY": "oa-key-123"}


@pytest.mark.parametrize(
    ("name", "base_url", "model", "key"),
    [
        ("hermes/smollm2", "local", "smollm2", None),
        ("openrouter/a/claude-4.6", "https://openrouter.ai/api/v1", "a/claude-4.6", "or-key-123"),
        ("openai/gpt-9", "https://api.openai.com/v1", "gpt-9", "oa-key-123"),
        ("vllm/Qwen/Qwen3-8B", "http://127.0.0.1:8000/v1", "Qwen/Qwen3-8B", None),
        ("sglang/x", "http://127.0.0.1:30000/v1", "x", None),
        ("ollama/llama3:8b", "http://127.0.0.1:11434/v1", "llama3:8b", None),
        ("llamacpp/x", "http://127.0.0.1:8080/v1", "x", None),
    ],
)
def test_built_in_providers_resolve(name: str, base_url: str, model: str, key: str | None) -> None:
    target = resolve_model(Settings(), KEYS, name)
    assert (target.base_url, target.model, target.api_key, target.name) == (base_url, model, key, name)
    assert target.is_local == (base_url == "local")
    assert "key-123" not in repr(target)


def test_own_providers_are_added_and_replace_built_in_ones() -> None:
    lab = ProviderSettings(base_url="http://lab:1/v1/", key_env="LAB_KEY", max_retries=1)
    settings = Settings(providers={"lab": lab, "vllm": ProviderSettings(base_url="http://gpu:8000/v1")})
    target = resolve_model(settings, {"LAB_KEY": "k"}, "lab/m")
    assert (target.base_url, target.api_key, target.settings.max_retries) == ("http://lab:1/v1", "k", 1)
    assert resolve_model(settings, {"LAB_KEY": " k\n"}, "lab/m").api_key == "k"
    assert resolve_model(settings, {}, "vllm/m").base_url == "http://gpu:8000/v1"
    assert list(profiles(settings, {}))[-1] == "lab"


def test_a_missing_key_names_the_variable_and_the_command() -> None:
    for environ in ({}, {"OPENROUTER_API_KEY": ""}):
        with pytest.raises(ConfigError, match="OPENROUTER_API_KEY is not set") as caught:
            resolve_model(Settings(), environ, "openrouter/x")
        assert "hermes config set OPENROUTER_API_KEY" in caught.value.hint
    lab = Settings(providers={"lab": ProviderSettings(base_url="http://lab", key_env="LAB_KEY")})
    with pytest.raises(ConfigError, match="LAB_KEY"):
        resolve_model(lab, {}, "lab/x")


def test_openai_pointed_elsewhere_uses_its_key_but_does_not_need_it() -> None:
    environ = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1/"}
    target = resolve_model(Settings(), environ, "openai/m")
    assert (target.base_url, target.api_key) == ("http://127.0.0.1:1/v1", None)
    assert resolve_model(Settings(), {**environ, **KEYS}, "openai/m").api_key == "oa-key-123"


def test_a_base_url_makes_a_provider_on_the_spot() -> None:
    target = resolve_model(Settings(), {}, "Qwen/Qwen3-8B", "http://127.0.0.1:5/v1/")
    assert (target.provider, target.model, target.base_url, target.api_key) == (
        "custom",
        "Qwen/Qwen3-8B",
        "http://127.0.0.1:5/v1",
        None,
    )
    assert resolve_model(Settings(), KEYS, target.name, target.base_url).model == "Qwen/Qwen3-8B"
    assert resolve_model(Settings(), KEYS, "m", "http://h").api_key == "oa-key-123"


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://x", "http://", "http://h:99999", "http://a b", "local"]
)
def test_a_base_url_that_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--base-url: expected an address"):
        resolve_model(Settings(), {}, "m", url)


@pytest.mark.parametrize(
    ("model", "complaint", "hint"),
    [
        ("opnrouter/a/b", "unknown provider 'opnrouter'", "did you mean openrouter/a/b?"),
        ("anthropic/claude", "unknown provider 'anthropic'", "did you mean openrouter/anthropic/claude?"),
        ("gpt-9", "names no provider", "did you mean openai/gpt-9?"),
        ("nothing-9", "names no provider", "known providers: hermes, openrouter, openai, vllm"),
        ("smollm2", "names no provider", "did you mean hermes/smollm2?"),
        ("vllm/", "has no name after the slash", "vllm/NAME"),
        ("", "names no provider", "PROVIDER/NAME"),
        ("hermes/smolm", "there is no bundled model", "hermes/smollm2"),
    ],
)
def test_a_model_that_does_not_exist_is_refused_with_what_does(model: str, complaint: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_model(Settings(), KEYS, model)
    assert complaint in caught.value.message
    assert hint in caught.value.hint
