"""Changes to the user's settings: variables go to `.env`, dotted keys to config.yaml.

A change is validated before it is written and written whole or not at all. It is refused if it would
add a problem; problems that are there already can be repaired one by one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from hermes.config import edit, env_file, load, paths, providers, schema, yaml_edit, yaml_file
from hermes.config.environment import is_setting_name
from hermes.config.secrets import looks_secret
from hermes.config.validate import SettingProblem, validate
from hermes.core.names import did_you_mean, nearest
from hermes.disk.files import atomic_write, ensure_dir, read_text, settings_lock
from hermes.errors import ConfigError

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_KEYS = ("TINKER_API_KEY", "WANDB_API_KEY", "HF_TOKEN", "FIRECRAWL_API_KEY", "TAVILY_API_KEY")
"""Keys that libraries and tools read, besides those of providers."""


def is_variable(name: str) -> bool:
    """OPENROUTER_API_KEY is a variable; sandbox.backend is a setting."""
    return bool(_VARIABLE.fullmatch(name))


def set_value(home: Path, name: str, text: str) -> Path:
    """Sets a variable or a setting; returns the file that was changed."""
    if is_variable(name):
        _check_variable(name, text)
        return _change(paths.env_path(home), home, lambda old, at: env_file.with_value(old, name, text, at))
    path = schema.require_path(name)
    value = schema.read_value(path, text)
    return _change_settings(home, lambda old, at: yaml_edit.with_value(old, path, value, at))


def unset_value(home: Path, name: str) -> bool:
    """Removes a variable or a setting from its file; False if it was not there.

    A key that is in the file but unknown can be removed too.
    """
    if is_variable(name):
        target = paths.env_path(home)
        if name not in env_file.parse(read_text(target) or "", str(target)):
            return False
        _change(target, home, lambda old, at: env_file.without(old, name, at))
        return True
    target = paths.config_path(home)
    written = yaml_file.parse(read_text(target) or "", str(target)).locations
    path = next((key for key in written if ".".join(key) == name), None)
    if path is None:
        schema.require_path(name)
        return False
    _change_settings(home, lambda old, at: yaml_edit.without(old, path, at))
    return True


def check_text(text: str, where: str) -> tuple[SettingProblem, ...]:
    """The problems of the text of a config.yaml; ConfigError if it is not even YAML."""
    data = load.without_empty_sections(yaml_file.parse(text, where).data)
    return validate(load.as_settings_data(data))[1]


def require_valid(text: str, where: str) -> None:
    """Raises ConfigError for the first problem in the text, with its place."""
    document = yaml_file.parse(text, where)
    problems = check_text(text, where)
    if problems:
        location = document.location(problems[0].path) or where
        raise ConfigError(f"{location}: {problems[0].message}", problems[0].hint)


def _change_settings(home: Path, change: Callable[[str, str], str]) -> Path:
    def checked(old: str, where: str) -> str:
        new = change(old, where)
        fresh = [problem for problem in check_text(new, where) if problem not in check_text(old, where)]
        if fresh:
            raise ConfigError(fresh[0].message, fresh[0].hint or "nothing was changed")
        return new

    return _change(paths.config_path(home), home, checked)


def _change(target: Path, home: Path, change: Callable[[str, str], str]) -> Path:
    with settings_lock(home):
        old = read_text(target) or ""
        new = change(old, str(target))
        if new != old or not target.exists():
            atomic_write(target, new)
    return target


def _check_variable(name: str, text: str) -> None:
    """Settings have one home, config.yaml; .env could hold them, but two locations to look are one too
    many."""
    if name == paths.HOME_VARIABLE:
        raise ConfigError(f"{name} decides where .env is, so it cannot be set in it", "set it in your shell")
    if is_setting_name(name):
        key = load.key_of(name)
        hint = f"hermes config set {key} VALUE" if key else "'hermes config show' lists every setting"
        raise ConfigError(f"{name} stands for a setting, not for a key", hint)
    profiles = providers.builtin_profiles().values()
    variables = sorted({*_KEYS, *(profile.key_env for profile in profiles if profile.key_env)})
    if name not in variables and looks_secret(name) and (likely := nearest(name, variables, cutoff=0.75)):
        raise ConfigError(
            f"nothing reads {name}",
            f"{did_you_mean(likely[:1])} For a program of your own write it into .env yourself",
        )
    if name == providers.OPENAI_URL_VARIABLE:
        providers.checked_url(text, name)


_FIRST_LINES = "# Settings of Hermes. 'hermes config show' lists every key with its value and origin.\n"

_TERMINAL_EDITORS = frozenset(
    ("vi", "vim", "nvim", "nano", "pico", "emacs", "micro", "hx", "helix", "joe", "ed")
)
"""Editors that wait for a person's keys."""


def edit_config(home: Path, environ: Mapping[str, str]) -> bool:
    """Opens the user's editor and waits; True if the file was changed.

    A copy that is not valid, or that would undo a change made meanwhile, is kept and named in the error.
    """
    target = paths.config_path(home)
    command = _editor(environ)
    before = read_text(target)
    draft = _draft(home, _FIRST_LINES if before is None else before)
    started = read_text(draft)
    try:
        _open(command, draft)
    except ConfigError:
        if read_text(draft) == started:
            draft.unlink(missing_ok=True)
        raise
    after = read_text(draft)
    if after is None or after == started:
        draft.unlink(missing_ok=True)
        return False
    with settings_lock(home):
        if read_text(target) != before:
            raise ConfigError(f"{target} was changed meanwhile", f"your version is {draft}")
        try:
            edit.require_valid(after, str(draft))
        except ConfigError as error:
            raise ConfigError(
                f"{error.message}; config.yaml is unchanged, your version is {draft}",
                f"{error.hint}; then: mv {shlex.quote(str(draft))} {shlex.quote(str(target))}",
            ) from error
        atomic_write(target, after)
    draft.unlink(missing_ok=True)
    return True


def _editor(environ: Mapping[str, str]) -> list[str]:
    chosen = environ.get("VISUAL") or environ.get("EDITOR")
    if chosen and not (_needs_terminal(shlex.split(chosen)[0]) and not sys.stdin.isatty()):
        return shlex.split(chosen)
    if not sys.stdin.isatty():
        raise ConfigError(
            "an editor needs a terminal, and standard input is none",
            "use 'hermes config set KEY VALUE', or write config.yaml yourself ('hermes config show paths')",
        )
    path = environ.get("PATH", os.defpath)
    editor = next((name for name in ("nano", "vi") if shutil.which(name, path=path)), None)
    if editor is None:
        raise ConfigError("no editor was found", "set EDITOR, or use 'hermes config set KEY VALUE'")
    return [editor]


def _needs_terminal(program: str) -> bool:
    return Path(program).name in _TERMINAL_EDITORS


def edit_file(path: Path, environ: Mapping[str, str]) -> None:
    """Opens the user's editor on a file and waits; ConfigError if there is no editor or no terminal."""
    _open(_editor(environ), path, f"{path} is as the editor left it")


def _draft(home: Path, text: str) -> Path:
    try:
        handle, name = tempfile.mkstemp(prefix="config-", suffix=".yaml", dir=ensure_dir(home))
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(
            f"cannot write a copy in {home}: {error.strerror or error}", "check the disk"
        ) from error
    return Path(name)


def _open(command: list[str], draft: Path, state: str = "config.yaml is unchanged") -> None:
    try:
        done = subprocess.run([*command, str(draft)])
    except OSError as error:
        raise ConfigError(f"cannot start the editor '{command[0]}'", "set EDITOR to a program") from error
    if done.returncode != 0:
        raise ConfigError(
            f"the editor ended with exit code {done.returncode}; {state}",
            f"your version is {draft}",
        )
