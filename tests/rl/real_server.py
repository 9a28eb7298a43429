"""vLLM or SGLang itself, from an environment of its own: variables name the commands that start them.

`make fleet` installs vLLM for the CPU and runs these tests with it.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.waiting import wait_until

VARIABLES = {"vllm": "HERMES_TEST_VLLM", "sglang": "HERMES_TEST_SGLANG"}
"""Such as `vllm serve` and `python -m sglang.launch_server`, with what the machine needs."""
MAX_RANK = 8
_FLAGS = {
    "vllm": "{model} --max-model-len 512 --enforce-eager",
    "sglang": "--model-path {model} --lora-target-modules all",
}
_COMMON_FLAGS = (
    "--enable-lora",
    "--max-lora-rank",
    str(MAX_RANK),
    "--dtype",
    "float32",
    "--host",
    "127.0.0.1",
)


def command_of(dialect: str) -> list[str]:
    """Skips the test if no command is named."""
    command = os.environ.get(VARIABLES[dialect])
    if not command:
        pytest.skip(f"{VARIABLES[dialect]} names no command that starts {dialect}")
    return shlex.split(command)


class RealServer:
    """A server that loads adapters; `start` after `kill` gives it the same address."""

    def __init__(self, dialect: str, model: Path, folder: Path, *flags: str) -> None:
        """`flags`: more words for its command line."""
        command = command_of(dialect)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.dialect, self.url = dialect, f"http://127.0.0.1:{port}"
        self._log = folder / f"server-{port}.log"
        words = _FLAGS[dialect].format(model=shlex.quote(str(model)))
        self._command = [*command, *shlex.split(words), *_COMMON_FLAGS, "--port", str(port), *flags]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> str:
        return self._log.read_text()

    def start(self) -> None:
        """Returns when it answers."""
        variables = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(
                self._command,
                env={**os.environ, **variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(lambda: self._answers() or process.poll() is not None)
        assert process.poll() is None, self.output[-3000:]

    def kill(self) -> None:
        """With all its processes."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def adapters(self) -> list[str]:
        with urllib.request.urlopen(f"{self.url}/v1/models", timeout=60) as response:
            return [str(card["id"]) for card in json.load(response)["data"]][1:]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=30) as response:
                return bool(response.status == 200)
        except OSError:
            return False
