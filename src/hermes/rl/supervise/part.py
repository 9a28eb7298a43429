"""One process of a run: how it is started, when it is ready, and what its end means."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.error import URLError

from hermes.config.environment import without_stored
from hermes.core import JSONObject

HERMES = (sys.executable, "-m", "hermes")
_PROBE_S = 2.0
SETTINGS_ARE_WRONG = 2
"""Exit code of every Hermes command that cannot work as configured: trying again changes nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    command: tuple[str, ...]
    log: Path
    ready: Callable[[], bool]
    """Asks the part itself, or a server it has to have spoken to. Quick; False while nobody answers."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """On top of what the supervisor was started with; the part reads `.env` itself."""
    ends_with: tuple[str, ...] = ()
    """Parts whose death makes this one's state worthless: it is ended and started again after them."""
    completes: bool = False
    """Whether the run is complete when this part has ended well."""
    done: Callable[[], bool] = lambda: True
    """Whether a good end of it is the end of its work, and not of one who was told to stop."""
    serves: bool = False
    """Whether it is a server, which never ends by itself."""
    start_patience_s: float = 600.0
    """How long it may take to become ready."""
    finish_patience_s: float = 0.0
    """How long it may take, once asked to stop, to finish and save what it has begun. It is asked just once,
    and the time is its own only while the parts before it live."""


def ask(url: str) -> JSONObject | None:
    """What a server answers; None while it does not."""
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_S) as answer:
            body: JSONObject = json.loads(answer.read() or b"{}")
            return body
    except (URLError, OSError, ValueError):
        return None


class End(StrEnum):
    """What is to be done about a part that has ended."""

    COMPLETE = "complete"
    REST = "rest"
    """It has done its work; it is woken only if the run needs it again."""
    RESTART = "restart"
    FATAL = "fatal"


def judge(part: Part, exit_code: int | None, explained: bool, disturbed: bool) -> End:
    """`exit_code` None: nobody saw it. `explained`: its log ends with an error it raised on purpose.
    `disturbed`: another part was started anew while it ran."""
    if exit_code == 0 and not part.serves and part.done():
        return End.COMPLETE if part.completes else End.REST
    if not exit_code or exit_code < 0:
        return End.RESTART
    if exit_code == SETTINGS_ARE_WRONG:
        return End.FATAL
    if explained and not disturbed and not part.serves:
        return End.FATAL
    return End.RESTART


def launch(part: Part, cwd: Path) -> subprocess.Popen[bytes]:
    """Starts it in a session of its own, with its output at the end of its log."""
    part.log.parent.mkdir(parents=True, exist_ok=True)
    with part.log.open("ab") as log:
        return subprocess.Popen(
            part.command,
            env={**without_stored(os.environ), **part.environ},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
