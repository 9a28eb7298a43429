"""How each client is pointed at the gateway: variables, words on its command line, a folder of its own.

A client is recognised by the name of its program. Any other program gets the variables that the SDKs of
OpenAI and Anthropic, and litellm, read.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hermes.core import JSONObject
from hermes.models.fields import as_object

LOCAL_KEY = "hermes-recording"
"""The key of clients whose provider's key the gateway has."""
_CODEX_KEY = "HERMES_RECORDING_KEY"
_ANSWER_SHARE = 4
"""One part in so many of a context is for one answer."""


@dataclass(frozen=True, slots=True)
class Target:
    """The addresses and names that a client is pointed at."""

    url: str
    """Without /v1."""
    model: str | None = None
    own_key: bool = True
    """False: the provider's key is the gateway's, and the client gets a local one."""
    context_tokens: int | None = None
    """The longest conversation of the model, where the client has to be told; None: as the client thinks."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a command is started."""

    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


Prepare = Callable[[tuple[str, ...], Target, Mapping[str, str], Path], Launch]


@dataclass(frozen=True, slots=True)
class Preset:
    agent: str
    """The fact `agent` of its trajectories."""
    programs: tuple[str, ...]
    prepare: Prepare
    alone: Mapping[str, str] = field(default_factory=dict)
    """Variables by which the client talks to its model and to no other host."""


def general_variables(target: Target) -> dict[str, str]:
    """Environment variables that the SDKs read."""
    openai = f"{target.url}/v1"
    variables = {
        "OPENAI_BASE_URL": openai,
        "OPENAI_API_BASE": openai,
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_API_BASE": target.url,
    }
    if not target.own_key:
        variables |= {"OPENAI_API_KEY": LOCAL_KEY, "ANTHROPIC_API_KEY": LOCAL_KEY}
    return variables


def _general(command: tuple[str, ...], target: Target, environ: Mapping[str, str], scratch: Path) -> Launch:
    return Launch(command, general_variables(target))


def _claude(command: tuple[str, ...], target: Target, environ: Mapping[str, str], scratch: Path) -> Launch:
    variables = {"ANTHROPIC_BASE_URL": target.url}
    if not target.own_key:
        variables |= {"ANTHROPIC_AUTH_TOKEN": LOCAL_KEY, "ANTHROPIC_API_KEY": ""}
    if target.model:
        variables |= {"ANTHROPIC_MODEL": target.model, "ANTHROPIC_SMALL_FAST_MODEL": target.model}
    names = ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_MAX_OUTPUT_TOKENS")
    limits = _limits(target, None, *names)
    return Launch(command, {**variables, **{name: str(value) for name, value in limits.items()}})


def _codex(command: tuple[str, ...], target: Target, environ: Mapping[str, str], scratch: Path) -> Launch:
    login = "requires_openai_auth=true"  # the account that the user signed in with
    if not target.own_key:
        login = f'env_key="{_CODEX_KEY}"'
    elif environ.get("OPENAI_API_KEY"):
        login = 'env_key="OPENAI_API_KEY"'
    provider = f'{{name="recorded",base_url="{target.url}/v1",wire_api="responses",{login}}}'
    words = ["-c", "model_provider=recorded", "-c", f"model_providers.recorded={provider}"]
    words += ["-m", target.model] if target.model else []
    words += ["-c", f"model_context_window={target.context_tokens}"] if target.context_tokens else []
    return Launch((command[0], *words, *command[1:]), {_CODEX_KEY: LOCAL_KEY})


def _opencode(command: tuple[str, ...], target: Target, environ: Mapping[str, str], scratch: Path) -> Launch:
    base = f"{target.url}/v1"
    names = ("openai", "anthropic")
    content: JSONObject = _object(environ.get("OPENCODE_CONFIG_CONTENT", ""))
    providers = {**content.get("provider", {}), **{name: {"options": {"baseURL": base}} for name in names}}
    if target.model:
        providers["recorded"] = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "recorded",
            "options": {"baseURL": base, "apiKey": LOCAL_KEY},
            "models": {target.model: {"name": target.model, **_limits(target, "limit", "context", "output")}},
        }
        model = f"recorded/{target.model}"
        content |= {"model": model, "small_model": model}
    content["provider"] = providers
    return Launch(command, {"OPENCODE_CONFIG_CONTENT": json.dumps(content)})


def _pi(command: tuple[str, ...], target: Target, environ: Mapping[str, str], scratch: Path) -> Launch:
    """pi reads a folder: the user's own, with one file in its place."""
    home = Path(environ.get("PI_CODING_AGENT_DIR") or Path(environ.get("HOME", "~")) / ".pi" / "agent")
    home.mkdir(parents=True, exist_ok=True)
    (home / "sessions").mkdir(exist_ok=True)
    for path in home.iterdir():
        if path.name != "models.json":
            (scratch / path.name).symlink_to(path)
    models = _object((home / "models.json").read_text("utf-8") if (home / "models.json").is_file() else "")
    providers = models.get("providers") or {}
    for name, base in (("anthropic", target.url), ("openai", f"{target.url}/v1")):
        providers[name] = {**providers.get(name, {}), "baseUrl": base}
    words: tuple[str, ...] = ()
    if target.model:
        providers["recorded"] = {
            "baseUrl": f"{target.url}/v1",
            "api": "openai-completions",
            "apiKey": LOCAL_KEY,
            "models": [{"id": target.model, **_limits(target, None, "contextWindow", "maxTokens")}],
        }
        words = ("--provider", "recorded", "--model", target.model)
    if target.context_tokens is not None:
        _fit_compaction(scratch / "settings.json", target.context_tokens)
    (scratch / "models.json").write_text(json.dumps({**models, "providers": providers}), "utf-8")
    return Launch((command[0], *words, *command[1:]), {"PI_CODING_AGENT_DIR": str(scratch)})


def _fit_compaction(path: Path, context_tokens: int) -> None:
    """By default pi keeps room for 16,384 tokens: with a small context it summarises after every turn."""
    settings = _object(path.read_text("utf-8") if path.is_file() else "")
    reserve, recent = context_tokens // _ANSWER_SHARE, context_tokens // 4
    fitting = {"reserveTokens": min(16_384, reserve), "keepRecentTokens": min(20_000, recent)}
    compaction = {**fitting, **as_object(settings.get("compaction"))}
    path.unlink(missing_ok=True)  # a link to the user's own file
    path.write_text(json.dumps({**settings, "compaction": compaction}), "utf-8")


def _limits(target: Target, key: str | None, context: str, output: str) -> JSONObject:
    """The model's context and the longest answer, in a client's words; empty if they are not known."""
    if target.context_tokens is None:
        return {}
    limits = {context: target.context_tokens, output: max(1, target.context_tokens // _ANSWER_SHARE)}
    return {key: limits} if key else limits


def _litellm(command: tuple[str, ...], target: Target, environ: Mapping[str, str], scratch: Path) -> Launch:
    words = ("--model", f"openai/{target.model}") if target.model else ()
    return Launch((command[0], *words, *command[1:]), general_variables(target))


_CLAUDE_ALONE = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # it differs from prompt to prompt
    "DISABLE_AUTOUPDATER": "1",
}
_OPENCODE_ALONE = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
_LITELLM_ALONE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
_MINI_ALONE = {**_LITELLM_ALONE, "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"}
PRESETS = (
    Preset("claude-code", ("claude",), _claude, _CLAUDE_ALONE),
    Preset("codex", ("codex",), _codex),
    Preset("opencode", ("opencode",), _opencode, _OPENCODE_ALONE),
    Preset("pi", ("pi",), _pi),
    Preset("aider", ("aider",), _litellm, _LITELLM_ALONE),
    Preset("mini-swe-agent", ("mini", "mini-swe-agent"), _litellm, _MINI_ALONE),
)
_GENERAL_ALONE = {**_LITELLM_ALONE, "OPENAI_AGENTS_DISABLE_TRACING": "1"}
_NO_PROXY = "127.0.0.1"


def preset_of(program: str) -> Preset | None:
    name = Path(program).name
    return next((preset for preset in PRESETS if name in preset.programs), None)


def alone_variables(program: str) -> Mapping[str, str]:
    """Variables by which a program, or the library that it is made with, talks to its model only."""
    preset = preset_of(program)
    return preset.alone if preset else _GENERAL_ALONE


def prepare(
    command: Sequence[str], target: Target, scratch: Path, environ: Mapping[str, str] = os.environ
) -> Launch:
    """The command as it is started; `scratch` is an empty folder that lives as long as it."""
    preset = preset_of(command[0])
    launch = (preset.prepare if preset else _general)(tuple(command), target, environ, scratch)
    bypass = {
        name: ",".join(filter(None, (environ.get(name), _NO_PROXY))) for name in ("NO_PROXY", "no_proxy")
    }
    return Launch(launch.command, {**launch.variables, **bypass})


def _object(text: str) -> JSONObject:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


_BEGIN, _END = "# >>> hermes record >>>", "# <<< hermes record <<<"


def start_file(shell: str) -> str:
    """The file, below the home, that this shell reads when it starts."""
    return {"zsh": ".zshrc", "bash": ".bashrc", "fish": ".config/fish/config.fish"}.get(shell, ".profile")


def shell_lines(programs: Sequence[str], hermes: str, shell: str = "bash") -> str:
    """The lines of a shell's start file by which these programs are always recorded. `hermes` is a path: its
    environment need not be active then, and without it the programs run unrecorded."""
    form = '{name}() {{ if [ -x {path} ]; then {path} record -- {name} "$@"; else command {name} "$@"; fi; }}'
    if shell == "fish":
        form = "function {name}; if test -x {path}; {path} record -- {name} $argv; else; command {name} $argv"
        form += "; end; end"
    elif shell not in ("bash", "zsh"):  # others refuse the whole file for a name with a hyphen
        programs = [name for name in programs if name.isidentifier()]
    functions = [form.format(name=name, path=shlex.quote(hermes)) for name in programs]
    return "\n".join([_BEGIN, *functions, _END]) + "\n"


def with_lines(text: str, lines: str) -> str:
    """The start file with these lines in place of those it has; without any if `lines` is empty."""
    before, begin, rest = text.partition(_BEGIN)
    if begin:
        text = before + rest.partition(_END)[2].removeprefix("\n")
    return text + ("\n" if text and not text.endswith("\n") and lines else "") + lines
