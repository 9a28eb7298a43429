"""Calls a function of ours that loads somebody else's file, in a child process with limits.

For commands that only look at such a file. Whatever the file does to its process (it ends it, never ends
its import, takes all memory, prints, closes descriptors, leaves threads and processes behind) costs that
process and is one sentence here. What it started ends with it. It is no sandbox: the file runs as this user,
with this environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from hermes.config.environment import export_stored, without_stored
from hermes.config.paths import HOME_VARIABLE
from hermes.core import JSON, JSONObject
from hermes.core.memory import available_bytes
from hermes.errors import HermesError, UsageError
from hermes.safety.author_import import trust_parent
from hermes.sandbox.supervisor import Launch, SandboxSupervisor

Report = Callable[[JSON], None]
LOAD_LIMIT_S = 120.0
"""How long the function may take to its first report: for importing the file and its packages."""
_LEAST_MEMORY_BYTES = 4 << 30
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class ChildResult:
    reports: list[JSON]
    """The reports of the function, in order."""
    problem: HermesError | None
    """The error that it raised, or how its process ended; None: it returned."""


def call_in_child(
    function: str,
    arguments: JSONObject,
    file: Path,
    forward: Callable[[str], None] | None = None,
    home: Path | None = None,
) -> ChildResult:
    """`module:function(report, **arguments)`, which calls `report` once the file is loaded, and as it likes.

    `forward` gets the output of the child as it comes. `home`: of Hermes, where it is not this process's.
    """
    environ = without_stored(os.environ)
    if home is not None:
        environ[HOME_VARIABLE] = str(home)
    with tempfile.TemporaryDirectory(prefix="hermes-child-") as folder:
        call = _call(function, arguments, file, Path(folder) / "reports", forward, environ)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(call)
        with ThreadPoolExecutor(1) as pool:  # this thread has a loop already
            return pool.submit(asyncio.run, call).result()


def _memory_bytes() -> int:
    """The memory that the machine has left: a child that takes more would have another process killed."""
    return max(_LEAST_MEMORY_BYTES, available_bytes())


async def _call(
    function: str,
    arguments: JSONObject,
    file: Path,
    path: Path,
    forward: Callable[[str], None] | None,
    environ: Mapping[str, str],
) -> ChildResult:
    path.touch()
    words = (sys.executable, "-P", "-m", __name__, function, json.dumps(arguments), str(path))
    rlimits = [("RLIMIT_DATA", *(2 * (_memory_bytes(),)))]
    launch = Launch(words, str(file), str(Path.cwd()), environ, rlimits)
    supervisor = await SandboxSupervisor.open()
    try:
        process = await supervisor.start(launch, stdin=False)
        waited_s, forwarded, code = 0.0, 0, None
        while code is None and (waited_s < LOAD_LIMIT_S or path.stat().st_size):
            code = await process.wait(_LOOK_S)
            waited_s += _LOOK_S
            text = process.output()
            if forward is not None and len(text) > forwarded and not process.capture.truncated:
                forward(text[forwarded:])
                forwarded = len(text)
        process.kill_now()
    finally:
        await supervisor.close()
    return _result(file, path, code, process.output())


def _result(file: Path, path: Path, code: int | None, output: str) -> ChildResult:
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    reports = [line["report"] for line in lines if "report" in line]
    end = lines[-1] if lines else {}
    if "returned" in end:
        return ChildResult(reports, None)
    if "raised" in end:
        kind = UsageError if end["exit_code"] == UsageError.exit_code else HermesError
        return ChildResult(reports, kind(end["raised"], end["hint"]))
    when = "after it was imported" if reports else "while it was imported"
    if code is None:
        return ChildResult(
            reports,
            UsageError(
                f"{file} is still being imported after {LOAD_LIMIT_S:g} s",
                f"Run 'python {file}' to see where it waits; work that takes long belongs in its functions.",
            ),
        )
    last = next(
        (f"; its last output: {line.strip()[:300]}" for line in output.splitlines()[::-1] if line.strip()), ""
    )
    return ChildResult(
        reports,
        UsageError(
            f"{file} ended its process {when}, {_described(code)}{last}",
            f"Run 'python {file}' to see more, and remove what ends the process (os._exit, a crash).",
        ),
    )


def _described(code: int) -> str:
    """How a process ended, by the shell's code: 128 and the signal."""
    if code <= 128:
        return f"with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"by {signal.Signals(code - 128).name}"
    return f"with exit code {code}"


def _main(function: str, arguments: JSONObject, path: str) -> NoReturn:
    """Runs the function; the process ends with it, whatever threads the file has started."""

    def write(line: JSONObject) -> None:
        with Path(path).open("ab") as reports:  # opened each time: the file may close what it did not open
            reports.write(json.dumps(line).encode() + b"\n")

    end: JSONObject = {"returned": True}
    try:
        trust_parent()
        export_stored()
        sys.argv = ["hermes"]
        module, _, name = function.partition(":")
        getattr(importlib.import_module(module), name)(lambda report: write({"report": report}), **arguments)
    except HermesError as error:
        end = {"raised": error.message, "hint": error.hint, "exit_code": error.exit_code}
    except BaseException:  # noqa: BLE001 - its text is the child's output, its end an exit code
        traceback.print_exc()
        os._exit(1)
    write(end)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the file closed it
            stream.flush()
    os._exit(0)


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
