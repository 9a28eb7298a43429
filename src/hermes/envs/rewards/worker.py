"""A worker process for graders that pass a model's text to a computer algebra package.

Such text can make the package run forever or use all memory. The worker has a bounded address space (not on
macOS, which has no such limit) and an almost empty environment, runs one call at a time, and is killed on a
timeout; the next call starts a new one. Its modules are imported once, so a call costs milliseconds, not a
second.

It bounds time and memory only. It is no sandbox: the grader decides which text is safe to pass.
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
"""For importing the package on a busy machine."""


class GraderProcess:
    """Calls `module.function(**arguments)` in a worker process. Thread-safe."""

    def __init__(self, module: str, timeout_s: float = 10.0) -> None:
        self._module = module
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, function: str, **arguments: JSON) -> JSON:
        """The function's return value; GraderError if it raises or times out."""
        with self._lock:
            process = self._process or self._start()
            reply = self._request(process, {"function": function, "arguments": arguments}, self._timeout_s)
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
        self._request(process, {}, _START_TIMEOUT_S)
        return process

    def _request(self, process: subprocess.Popen[bytes], call: JSONObject, timeout_s: float) -> JSONObject:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(call).encode() + b"\n")
            process.stdin.flush()
            line = _read_line(process.stdout, timeout_s)
        except (BrokenPipeError, EOFError):
            self._kill()
            raise GraderError(f"the grader's process for {self._module} died") from None
        except TimeoutError:
            self._kill()
            raise GraderError(f"the grader timed out after {timeout_s:g} s") from None
        reply: JSONObject = json.loads(line)
        return reply

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()


def _read_line(stream: IO[bytes], timeout_s: float) -> bytes:
    """One line. One call is in flight at a time, so nothing can follow it."""
    poller = select.poll()
    poller.register(stream, select.POLLIN)
    if not poller.poll(timeout_s * 1000):
        raise TimeoutError
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line


def _serve(module_name: str) -> None:
    import resource

    if sys.platform != "darwin":  # where setting RLIMIT_AS fails
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps the package's own output out of the replies
    module = importlib.import_module(module_name)
    for line in sys.stdin.buffer:
        replies.write(json.dumps(_run_call(module, json.loads(line))).encode() + b"\n")
        replies.flush()


def _run_call(module: Any, call: JSONObject) -> JSONObject:
    if not call:
        return {}
    try:
        return {"result": getattr(module, call["function"])(**call["arguments"])}
    except Exception as error:  # noqa: BLE001  sent to the caller, which raises GraderError
        return {"error": f"{type(error).__name__}: {error}"[:500]}


if __name__ == "__main__":
    _serve(sys.argv[1])
