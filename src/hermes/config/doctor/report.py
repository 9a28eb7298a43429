"""The report of this machine: one small function a check, each with what a missing thing would give.

The checks only look: they change nothing, contact only endpoints the user configured and the usual local
ports, and never print a key. They work with a broken config.yaml, which is then one of the findings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from hermes.config import load, paths
from hermes.config.doctor import machine, setup
from hermes.config.doctor.check import Check, CheckStatus, Subject
from hermes.config.environment import without_stored
from hermes.errors import HermesError


class Probe(Protocol):
    """One check; the name is what a failure of the check itself is reported under."""

    __name__: str

    def __call__(self, subject: Subject, /) -> list[Check]: ...


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
        setup.python_version,
        setup.sqlite_version,
        setup.disk_space,
        setup.home_directory,
        setup.configuration,
        setup.default_model,
        setup.bundled_model,
        machine.bubblewrap,
        machine.docker,
        machine.gpu,
        machine.optional_packages,
        setup.keys,
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
