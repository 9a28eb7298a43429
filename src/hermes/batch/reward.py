"""Scores a finished trajectory with a user's function, while its sandbox still exists.

The function is `def reward(ctx)` or `async def reward(ctx)` and returns a finite number. It has access to the
task, the trajectory and the sandbox. If it raises, or returns anything but a finite number, the grader has
failed: the trajectory is kept without a reward and with the reason, and is never scored 0 for it.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hermes.batch.tasks import TaskRow
from hermes.core import JSON, JSONObject, Trajectory
from hermes.errors import HermesError, UsageError
from hermes.safety.author_import import importing, line_in

if TYPE_CHECKING:  # the parent of a run loads reward functions too, and needs no sandbox for that
    from hermes.sandbox.base import Sandbox

_HERMES = Path(__file__).parents[1]
Result = TypeVar("Result")
RewardFunction = Callable[["RewardContext"], Any]
OpenSandbox = Callable[[], Awaitable["Sandbox"]]
"""The rollout's sandbox, once a reward function needs it."""
MAX_CONTENT_BYTES = 32 << 20
"""The largest file that a grader reads as text: a sparse file costs a policy nothing, a trainer its size."""


class GraderError(HermesError):
    """The reward function failed; the policy is not to blame."""


@dataclass(frozen=True)
class RewardContext:
    """The argument of a reward function. Sandbox methods block in a plain function, else are awaited."""

    row: TaskRow
    trajectory: Trajectory
    _open_sandbox: OpenSandbox
    _wait: Callable[[Coroutine[Any, Any, Any]], Any]

    @property
    def answer(self) -> str:
        return self.trajectory.answer

    @property
    def expected(self) -> JSON:
        return self.row.expected

    def terminal(self, command: str, timeout_s: float = 180.0) -> Any:
        """{exit_code, output} of a command in the rollout's sandbox."""

        async def run() -> JSONObject:
            result = await (await self._open_sandbox()).run(command, timeout_s=timeout_s)
            return {"exit_code": result.exit_code, "output": result.output}

        return self._wait(run())

    def read_file(self, path: str) -> Any:
        """A file of the workspace, as text. OSError: it is missing, unreadable or over MAX_CONTENT_BYTES."""

        async def read() -> str:
            data = await (await self._open_sandbox()).read_file(path, MAX_CONTENT_BYTES + 1)
            if len(data) > MAX_CONTENT_BYTES:
                raise OSError(errno.EFBIG, f"larger than {MAX_CONTENT_BYTES} bytes", path)
            return data.decode("utf-8", "replace")

        return self._wait(read())

    def write_file(self, path: str, text: str) -> Any:
        async def write() -> None:
            await (await self._open_sandbox()).write_file(path, text.encode())

        return self._wait(write())


def load_reward(reference: str) -> RewardFunction:
    """`path/to/file.py:function`; the file is run once, in this process.

    UsageError: there is no such file or function, or the function cannot be called with one argument.
    """
    path, name = _named(reference)
    spec = importlib.util.spec_from_file_location(f"hermes_reward_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        with importing(path):
            spec.loader.exec_module(module)
    except UsageError as error:
        raise UsageError(f"--reward {reference}: {error.message}", error.hint) from error
    except Exception as error:
        raise UsageError(
            f"--reward {reference}: {path}{line_in(path, error)} fails to load: {error!r}",
            f"run it with python: python {path}",
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise UsageError(
            f"--reward {reference}: no function '{name}'", f"it has: {', '.join(names) or 'none'}"
        )
    _check_signature(reference, function)
    loaded: RewardFunction = function
    return loaded


def check_reward(reference: str) -> None:
    """Loads it in a child process, for a command that does not run it. UsageError, whatever the file does."""
    from hermes.sandbox.child_call import call_in_child

    path, _ = _named(reference)
    if path.is_relative_to(_HERMES):
        return
    problem = call_in_child("hermes.batch.reward:_report_loaded", {"reference": reference}, path).problem
    if problem is not None:
        raise problem


def _report_loaded(report: Callable[[JSON], None], reference: str) -> None:
    load_reward(reference)
    report(None)


def _named(reference: str) -> tuple[Path, str]:
    """The file and the function."""
    file, _, name = reference.rpartition(":")
    if not file and Path(reference).is_file():
        raise UsageError(
            f"--reward {reference}: no function is named", f"write {reference}:FUNCTION, for example score"
        )
    path = Path(file)
    if not file or not path.is_file():
        raise UsageError(
            f"--reward {reference}: there is no file {file or reference}", "write file.py:function"
        )
    return path, name


def _check_signature(reference: str, function: Callable[..., Any]) -> None:
    """UsageError: it cannot be called with the context alone, which would fail after the model was paid."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without one
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise UsageError(
            f"--reward {reference}: {function.__name__}{signature} is called with one argument: {error}",
            "write def reward(ctx), and read ctx.answer, ctx.expected, ctx.row and ctx.trajectory",
        ) from error


async def score(
    function: RewardFunction, row: TaskRow, trajectory: Trajectory, open_sandbox: OpenSandbox
) -> float:
    """The reward; GraderError if the function does not return one."""
    try:
        value = await _call(function, row, trajectory, open_sandbox)
    except HermesError as error:
        raise GraderError(error.message, error.hint) from error
    except Exception as error:
        raise GraderError(f"{type(error).__name__}: {error}") from error
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        if isinstance(value, bool):
            return float(value)
        raise GraderError(f"the reward function returned {value!r}, not a finite number")
    return float(value)


async def _call(
    function: RewardFunction, row: TaskRow, trajectory: Trajectory, open_sandbox: OpenSandbox
) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(RewardContext(row, trajectory, open_sandbox, _unchanged))
    loop = asyncio.get_running_loop()

    def block(work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    return await asyncio.to_thread(function, RewardContext(row, trajectory, open_sandbox, block))


def _unchanged(work: Coroutine[Any, Any, Result]) -> Coroutine[Any, Any, Result]:
    return work
