"""Where services are: from `provider/name` to a model's address and key; the trajectory API's address.

Built-in profiles are defaults; `providers.<name>` in the settings changes or adds one. Nothing here
connects anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hermes.config.settings import LOCAL, ProviderSettings, Settings, http_url
from hermes.core import JSONObject
from hermes.core.names import did_you_mean, is_policy_name, nearest
from hermes.errors import ConfigError, UsageError

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_URL_VARIABLE = "OPENAI_BASE_URL"
API_URL_VARIABLE = "RL_API_URL"
CUSTOM = "custom"
"""The provider made up on the spot by `--base-url`."""
BUNDLED_PROVIDER = "hermes"
BUNDLED_MODELS = ("smollm2",)
_FAMILIES = {
    **dict.fromkeys(("gpt-", "chatgpt-", "o1", "o3", "o4"), "openai"),
    "claude": "openrouter/anthropic",
    "gemini": "openrouter/google",
}
"""How the names of well-known models begin, and what stands before them."""


def builtin_profiles() -> dict[str, ProviderSettings]:
    """The providers that need no configuration, by name."""
    return {
        "hermes": ProviderSettings(base_url=LOCAL, max_concurrency=1, toolsets=("math",)),
        "openrouter": ProviderSettings(base_url="https://openrouter.ai/api/v1", key_env="OPENROUTER_API_KEY"),
        "openai": ProviderSettings(base_url=OPENAI_URL, key_env="OPENAI_API_KEY"),
        "vllm": ProviderSettings(base_url="http://127.0.0.1:8000/v1"),
        "sglang": ProviderSettings(base_url="http://127.0.0.1:30000/v1"),
        "ollama": ProviderSettings(base_url="http://127.0.0.1:11434/v1"),
        "llamacpp": ProviderSettings(base_url="http://127.0.0.1:8080/v1"),
    }


def profiles(settings: Settings, environ: Mapping[str, str]) -> dict[str, ProviderSettings]:
    """Every provider that can be named: built-in ones first, as configured, then the user's own."""
    builtin = builtin_profiles()
    if url := environ.get(OPENAI_URL_VARIABLE):
        builtin["openai"] = builtin["openai"].model_copy(
            update={"base_url": checked_url(url, OPENAI_URL_VARIABLE)}
        )
    return {**builtin, **settings.providers}


def fill_builtin(providers: JSONObject) -> JSONObject:
    """Raw `providers` data where an entry for a built-in provider gets that profile's missing fields."""
    builtin = builtin_profiles()
    return {
        name: {**builtin[name].model_dump(exclude_unset=True), **entry}
        if name in builtin and isinstance(entry, dict)
        else entry
        for name, entry in providers.items()
    }


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """Where one model is, and how to call it."""

    provider: str
    model: str
    """The name that is sent to the server; may contain slashes."""
    base_url: str
    """`local` for a model in this process."""
    key_env: str | None
    """The variable the key comes from; None if the provider takes none."""
    api_key: str | None = field(repr=False)
    settings: ProviderSettings
    label: str | None = None
    """The name for people, where the server has another one for it."""

    @property
    def name(self) -> str:
        """As the user names it: provider/model; a policy, and the bundled model at an engine, by its own."""
        if self.label is not None:
            return self.label
        return model_name(self.provider, self.model)

    @property
    def is_local(self) -> bool:
        return self.base_url == LOCAL


def model_name(provider: str, model: str) -> str:
    """provider/model; of a policy, and of the bundled model at an engine, its own name."""
    is_engine = provider == CUSTOM and model.startswith(f"{BUNDLED_PROVIDER}/")
    return model if is_engine or is_policy_name(model) else f"{provider}/{model}"


def resolve_model(
    settings: Settings, environ: Mapping[str, str], model: str, base_url: str | None = None
) -> ModelTarget:
    """The target of a model name. `base_url` names any compatible endpoint instead of a known provider.

    `environ` is the merged environment (`Config.environ`). UsageError for a name that does not exist,
    ConfigError for a key that is missing.
    """
    if base_url is not None:
        return _ad_hoc(settings, environ, model, base_url)
    providers = profiles(settings, environ)
    model = settings.model_aliases.get(model, model)
    provider, slash, name = model.partition("/")
    if not slash or provider not in providers:
        raise _unknown_provider(model, provider, list(providers), list(settings.model_aliases))
    if not name:
        raise UsageError(f"the model '{model}' has no name after the slash", f"write {provider}/NAME")
    if providers[provider].base_url == LOCAL:
        check_bundled(model)
    profile = providers[provider]
    key = _key(profile, environ)
    if key is None and needs_key(provider, profile):
        raise ConfigError(
            f"the provider {provider} needs an API key, and {profile.key_env} is not set",
            f"hermes config set {profile.key_env} (asks for it), or set it in the environment",
        )
    return ModelTarget(provider, name, profile.base_url, profile.key_env, key, profile)


def check_bundled(model: str) -> None:
    """UsageError for a name like those of bundled models that none has; it would be looked for on the hub."""
    provider, _, name = model.partition("/")
    if provider == BUNDLED_PROVIDER and name not in BUNDLED_MODELS:
        names = ", ".join(f"{BUNDLED_PROVIDER}/{bundled}" for bundled in BUNDLED_MODELS)
        raise UsageError(f"there is no bundled model '{model}'", f"bundled: {names}")


def needs_key(provider: str, profile: ProviderSettings) -> bool:
    """A provider with a key variable needs it; `openai` pointed at another server may not."""
    return profile.key_env is not None and not (provider == "openai" and profile.base_url != OPENAI_URL)


def checked_url(url: str, source: str) -> str:
    """A usable base URL; `source` names the flag or variable in the error."""
    try:
        return http_url(url)
    except ValueError as error:
        raise UsageError(f"{source}: expected {error}", "begin with http:// or https://") from error


def trajectory_api_url(environ: Mapping[str, str]) -> str | None:
    """The trajectory API that RL_API_URL names, for environments and trainers that have no setting of their
    own."""
    url = environ.get(API_URL_VARIABLE)
    return checked_url(url, API_URL_VARIABLE) if url else None


def _ad_hoc(settings: Settings, environ: Mapping[str, str], model: str, base_url: str) -> ModelTarget:
    url = checked_url(base_url, "--base-url")
    name = model.removeprefix(f"{CUSTOM}/")
    if not name:
        raise UsageError("no model name", "give the name the server knows with --model")
    base = settings.providers.get(CUSTOM) or ProviderSettings(base_url=url, key_env="OPENAI_API_KEY")
    profile = base.model_copy(update={"base_url": url})
    return ModelTarget(CUSTOM, name, url, profile.key_env, _key(profile, environ), profile)


def _key(profile: ProviderSettings, environ: Mapping[str, str]) -> str | None:
    """The key without the white space that pasting leaves around it."""
    return environ.get(profile.key_env or "", "").strip() or None


def likely_names(model: str, providers: Iterable[str], aliases: Iterable[str]) -> list[str]:
    """The models that a name without a slash probably means, the likeliest first."""
    before, colon, after = model.partition(":")
    likely = [f"{BUNDLED_PROVIDER}/{name}" for name in BUNDLED_MODELS if name == model]
    likely += [f"{before}/{after}"] if colon and before in providers else []
    likely += [f"{path}/{model}" for start, path in _FAMILIES.items() if model.lower().startswith(start)]
    return likely + nearest(model, aliases)


def _unknown_provider(model: str, provider: str, providers: list[str], aliases: list[str]) -> UsageError:
    listing = f"known providers: {', '.join(providers)}"
    if "/" not in model:
        otherwise = f"write PROVIDER/NAME, as in openai/gpt-4o; {listing}; 'hermes models' lists all names"
        return UsageError(
            f"the model '{model}' names no provider",
            did_you_mean(likely_names(model, providers, aliases)[:1], otherwise),
        )
    close = nearest(provider, providers)
    guess = f"{close[0]}/{model.partition('/')[2]}" if close else f"openrouter/{model}"
    hint = f"did you mean {guess}? {listing}"
    return UsageError(f"unknown provider '{provider}' in the model '{model}'", hint)
