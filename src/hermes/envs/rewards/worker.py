"""A process of its own for graders that hand a model's text to a computer algebra package.

Such text can make the package run for ever or eat all memory. The worker has a bounded address space
(not on macOS, which has no such bound) and no environment, is asked one question at a time, and is killed
when it overstays; the next question starts a new one. Its modules are imported once, so a question costs
milliseconds, not a second.

It bounds time and memory, not reach: what may be handed to it is decided by the grader that asks.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from typing import IO, Any

from hermes.core import JSON, JSONObject
from hermes.envs.rewards.result import GraderError

MEMORY_BYTES = 4 * 1024**3
_START_TIMEOUT_S = 120.0
"""For importing the package, on a machine that is busy."""


class GraderProcess:
    """Calls `module.function(**arguments)` in a worker. Safe to use from several threads."""

    def __init__(self, module: str, timeout_s: float = 10.0) -> None:
        self._module = module
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, function: str, **arguments: JSON) -> JSON:
        """What the function returns; GraderError if it raised, or did not answer in time."""
        with self._lock:
            process = self._process or self._start()
            reply = self._ask(process, {"function": function, "arguments": arguments}, self._timeout_s)
        if "error" in reply:
            raise GraderError(f"the grader failed: {reply['error']}")
        return reply["result"]

    def close(self) -> None:
        with self._lock:
            self._kill()

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hermes.envs.rewards.worker", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=tempfile.gettempdir(),
            env={
                "PATH": os.defpath,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "LANG": "C.UTF-8",
            },
            start_new_session=True,
        )
        self._ask(process, {}, _START_TIMEOUT_S)
        return process

    def _ask(self, process: subprocess.Popen[bytes], question: JSONObject, timeout_s: float) -> JSONObject:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            line = _read_line(process.stdout, timeout_s)
        except (BrokenPipeError, EOFError):
            self._kill()
            raise GraderError(f"the grader's process for {self._module} died") from None
        except TimeoutError:
            self._kill()
            raise GraderError(f"the grader did not come to an end within {timeout_s:g} s") from None
        reply: JSONObject = json.loads(line)
        return reply

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()


def _read_line(stream: IO[bytes], timeout_s: float) -> bytes:
    """One line; one question is open at a time, so nothing can follow it."""
    waiting = select.poll()
    waiting.register(stream, select.POLLIN)
    if not waiting.poll(timeout_s * 1000):
        raise TimeoutError
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line


def _serve(module_name: str) -> None:
    import resource

    if sys.platform != "darwin":  # which refuses every such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the package prints is no reply
    module = importlib.import_module(module_name)
    for line in sys.stdin.buffer:
        replies.write(json.dumps(_answer(module, json.loads(line))).encode() + b"\n")
        replies.flush()


def _answer(module: Any, question: JSONObject) -> JSONObject:
    if not question:
        return {}
    try:
        return {"result": getattr(module, question["function"])(**question["arguments"])}
    except Exception as error:  # noqa: BLE001  told to whoever asked, as a failure
        return {"error": f"{type(error).__name__}: {error}"[:500]}


if __name__ == "__main__":
    _serve(sys.argv[1])
