"""Where in the author's code an error was raised, or a grader is at the moment: file and line.

The author's code is what is neither Hermes nor an installed package.
"""

from __future__ import annotations

import logging
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

logger = logging.getLogger(__name__)

_HERMES = str(Path(__file__).parents[1])
_INSTALLED = (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"], "<")
FIRST_WARNING_S = 60.0
"""How long grading may take before it is named; then at twice that, four times, and so on."""
_POLL_S = 1.0


def error_location(error: BaseException) -> str | None:
    """`my_env.py:31`, the innermost line of the author's code that the error passed; None: it passed none."""
    current: BaseException | None = error
    location = None
    while current is not None:
        for frame in traceback.extract_tb(current.__traceback__):
            if _is_authors(frame.filename):
                location = f"{Path(frame.filename).name}:{frame.lineno}"
        current = current.__cause__
    return location


def _is_authors(filename: str) -> bool:
    builtin = str(Path(_HERMES) / "envs" / "builtin")
    return filename.startswith(builtin) or not filename.startswith((_HERMES, *_INSTALLED))


@dataclass(slots=True)
class _Grading:
    code: CodeType
    work: Any
    """The coroutine, if the grader is one."""
    thread_id: int
    began_s: float = field(default_factory=time.monotonic)
    warned_s: float = 0.0

    def location(self) -> str:
        frames = [*_thread_frames(self.thread_id), *_coroutine_frames(self.work)]
        lines = [frame.f_lineno for frame in frames if frame.f_code.co_filename == self.code.co_filename]
        return f"{Path(self.code.co_filename).name}:{lines[-1] if lines else self.code.co_firstlineno}"


class GraderWatch:
    """Names graders that take long, from a thread of its own: one that blocks the event loop is named too."""

    def __init__(self, first_warning_s: float = FIRST_WARNING_S, poll_s: float = _POLL_S) -> None:
        self._first_warning_s, self._poll_s = first_warning_s, poll_s
        self._running: dict[int, _Grading] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, function: Callable[..., Any], work: Any = None) -> Iterator[None]:
        """While the grader runs in this thread; `work`: its coroutine."""
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is None:
            yield
            return
        grading = _Grading(code, work, threading.get_ident())
        with self._lock:
            self._running[id(grading)] = grading
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="grader-watch", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._running[id(grading)]

    def _look(self) -> None:
        while True:
            time.sleep(self._poll_s)
            with self._lock:
                if not self._running:
                    self._thread = None
                    return
                gradings = list(self._running.values())
            for grading in gradings:
                elapsed_s = time.monotonic() - grading.began_s
                if elapsed_s >= max(self._first_warning_s, 2 * grading.warned_s):
                    grading.warned_s = elapsed_s
                    logger.warning("grading has taken %.0f s in %s", elapsed_s, grading.location())


def _thread_frames(thread_id: int) -> list[FrameType]:
    """Outermost first."""
    frame, frames = sys._current_frames().get(thread_id), []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _coroutine_frames(work: Any) -> list[FrameType]:
    """The frames of a coroutine that waits, outermost first."""
    frames = []
    while work is not None and getattr(work, "cr_frame", None) is not None:
        frames.append(work.cr_frame)
        work = work.cr_await
    return frames


GRADER_WATCH = GraderWatch()
