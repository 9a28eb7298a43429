"""What the loops need around them: the cookbook's environment, and the engine as a process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import venv
from pathlib import Path

# torch pinned exactly, so that pip picks a build that is already at hand where there is one
REQUIREMENTS = ("torch==2.13.0", "tinker-cookbook[math-rl]==0.5.8", "tinker==0.36.0")
MODEL = "hermes/smollm2"


class Engine:
    """The server as a process that can be killed and started again at the same address."""

    def __init__(self, folder: Path, replicas: int) -> None:
        self._folder, self._replicas = folder, replicas
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        log = self._folder / "engine.log"
        options = f"--model {MODEL} --device cpu --dtype float32 --port {self._port}".split()
        options += ["--state-dir", str(self._folder / "state"), "--replicas", str(self._replicas)]
        command = [sys.executable, "-m", "hermes", "engine", "serve", *options]
        with log.open("ab") as out:
            position = out.tell()
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=environment(self._folder))
        while not (found := re.search(rb"engine on http://\S+:(\d+)", log.read_bytes()[position:])):
            if self._process.poll() is not None:
                raise SystemExit(f"the engine did not start; see {log}")
            time.sleep(0.2)
        self._port = int(found[1])

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait()


def cookbook_python(folder: Path) -> Path:
    """The environment is made once, and again when its requirements change."""
    stamp = folder / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS)
    python = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *REQUIREMENTS], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def environment(folder: Path) -> dict[str, str]:
    """Nothing of the caller's settings, and no network beyond loopback."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    private = {"HERMES_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "TINKER_TELEMETRY": "0"}
    return {**kept, **private, "PYTHONUNBUFFERED": "1"}


def versions(python: Path) -> dict[str, str]:
    names = ("tinker-cookbook", "tinker", "transformers", "torch")
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    printed = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout
    versions: dict[str, str] = json.loads(printed)
    return versions
