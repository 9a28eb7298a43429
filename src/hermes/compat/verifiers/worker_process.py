"""The worker as a process: started, asked, and ended. Its failures become sentences.

What the worker and the environment print goes to a log file, which failures name.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes.compat.verifiers.interpreter import install_hint
from hermes.core import JSONObject, parse_object
from hermes.envs.failures import GroupDroppedError
from hermes.errors import ConfigError, HermesError, HostError

_logger = logging.getLogger(__name__)
_LIMIT_BYTES = 1 << 26
_END_PATIENCE_S = 10.0
_LOOK_S = 0.1
_DRAIN_S = 2.0
"""For replies that were written before the end."""
_SLOW_S = 60.0


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A failure that the worker reported."""

    kind: str
    message: str
    where: str

    def text(self) -> str:
        return f"{self.message} ({self.where})" if self.where else self.message


class WorkerProcess:
    """One environment of verifiers in a process of its own."""

    def __init__(self, python: Path, package: str, log: Path) -> None:
        self._python, self._package, self._log = python, package, log
        self._process: asyncio.subprocess.Process | None = None
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)
        self._reader: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """ConfigError: there is no such interpreter."""
        if not self._python.is_file():
            raise ConfigError(f"there is no interpreter {self._python}.", install_hint())
        self._log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        search_path = f"{self._python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(self._python),
                "-P",
                str(Path(__file__).with_name("worker.py")),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PATH": search_path, "PYTHONUNBUFFERED": "1"},
                limit=_LIMIT_BYTES,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._reader = asyncio.create_task(self._read(self._process.stdout))
        self._watcher = asyncio.create_task(self._watch(self._process, self._reader))

    async def load(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Loads the environment; a failure is raised with what to do about it."""
        sign = asyncio.get_running_loop().call_later(_SLOW_S, self._say_slow)
        try:
            description: dict[str, Any] = await self._ask("load", params)
        except _ReportedError as error:
            raise self._load_error(error.report) from error
        finally:
            sign.cancel()
        return description

    def _say_slow(self) -> None:
        _logger.warning(
            "%s is still being loaded after %.0f s; its log is %s", self._package, _SLOW_S, self._log
        )

    async def task(self, split: str, index: int) -> dict[str, Any] | None:
        try:
            row: dict[str, Any] | None = await self._ask("task", {"split": split, "index": index})
        except _ReportedError as error:
            raise self._load_error(error.report) from error
        return row

    async def run(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """One rollout. GroupDroppedError: the environment's code raised."""
        try:
            result: dict[str, Any] = await self._ask("run", params)
        except _ReportedError as error:
            raise GroupDroppedError(
                "environment", f"{self._package} raised {error.report.text()}; see {self._log}"
            ) from error
        return result

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and self._watcher is not None
        process.stdin.close()
        await asyncio.wait([self._watcher], timeout=_END_PATIENCE_S)
        _kill_group(process)
        await self._watcher

    async def _watch(self, process: asyncio.subprocess.Process, reader: asyncio.Task[None]) -> None:
        """Once the process has ended: ends what the package left, which may hold the output open."""
        while process.returncode is None:  # noqa: ASYNC110 - `wait` waits for the end of the output too
            await asyncio.sleep(_LOOK_S)
        _kill_group(process)
        await asyncio.wait([reader], timeout=_DRAIN_S)
        reader.cancel()
        process._transport.close()  # type: ignore[attr-defined]  # a process in another session may hold its pipes
        self._fail_replies()

    async def _ask(self, method: str, params: Mapping[str, Any]) -> Any:
        process = self._process
        if process is None or process.stdin is None or (self._reader is not None and self._reader.done()):
            raise self._died()
        number = next(self._ids)
        future = self._replies[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "method": method, "params": dict(params)})
        try:
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()
            return await future
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._died() from error
        finally:
            self._replies.pop(number, None)

    async def _read(self, output: asyncio.StreamReader) -> None:
        try:
            while line := await output.readline():
                self._accept(parse_object(line))
        except (ValueError, KeyError, TypeError) as error:  # the package has written there itself
            _logger.warning("the process of %s is ended, it sent what is no reply: %s", self._package, error)
            if self._process is not None:
                _kill_group(self._process)
        self._fail_replies()

    def _fail_replies(self) -> None:
        for future in self._replies.values():
            if not future.done():
                future.set_exception(self._died())

    def _accept(self, reply: JSONObject) -> None:
        future = self._replies.get(reply["id"])
        if future is None or future.done():
            return  # nobody waits for it any more
        if "error" in reply:
            future.set_exception(_ReportedError(WorkerReport(**reply["error"])))
        elif reply["result"] is None or isinstance(reply["result"], dict):
            future.set_result(reply["result"])
        else:
            raise TypeError("a result is an object")

    def _died(self) -> HermesError:
        return HostError(
            f"the process that ran {self._package} ended.", f"Its last lines are at the end of {self._log}."
        )

    def _load_error(self, report: WorkerReport) -> HermesError:
        problem, hint = _sentences(report, self._package, self._python)
        return ConfigError(problem, hint or f"Its log is {self._log}.")


def _kill_group(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class _ReportedError(Exception):
    def __init__(self, report: WorkerReport) -> None:
        super().__init__(report.text())
        self.report = report


def _sentences(report: WorkerReport, package: str, python: Path) -> tuple[str, str]:
    """The problem with loading a package, and the fix; the hint may be empty."""
    text = report.text()
    if report.kind == "no verifiers":
        return f"{text}.", install_hint()
    if report.kind == "version":
        return (
            f"{package} cannot run: {text}.",
            "Hermes runs tasksets with verifiers 0.4 and packages with load_environment with 0.3: "
            "hermes env verifiers install --version 0.3.1, in a folder of its own (--folder).",
        )
    if report.kind == "no package":
        return f"{package} is not installed: {text}.", f"{python} -m pip install {package}"
    if report.kind == "no environment":
        return (
            f"{package} has no environment: {text}.",
            "The module has to export a Taskset in __all__, or define load_environment.",
        )
    if report.kind == "local commands":
        return (
            f"{package} cannot run here: {text}.",
            "Isolate it with --env.runtime docker, choose --env.harness null, or set "
            "--env.allow_local_commands true.",
        )
    if report.kind == "group rewards":
        return f"{package} cannot run here: {text}.", "Hermes runs and scores each rollout on its own."
    if report.kind == "hub":
        return (
            f"{package} needs data from the hub, which cannot be reached: {text}.",
            "Download it where there is a network (HF_HOME keeps it), or name other data with --env.args.",
        )
    return f"{package} could not be loaded: it raised {text}.", ""
