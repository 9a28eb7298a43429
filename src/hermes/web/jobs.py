"""Work that takes longer than a request: a command of Hermes in a process of its own, its output in a file.

A job belongs to the server: it ends with it. What a job starts and leaves behind by design (a supervised run)
does not. Commands are argument lists, never text for a shell.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hermes.config.environment import without_stored
from hermes.config.paths import logs_dir
from hermes.core.clock import now_ms
from hermes.disk.files import ensure_dir
from hermes.errors import HermesError, UsageError

HERMES = (sys.executable, "-P", "-m", "hermes")
_MAX_RUNNING = 4
_SHORT_S = 180.0
_MAX_KNOWN = 200
_OUTPUT_CHARS = 200_000
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass
class Job:
    job_id: str
    title: str
    back: str
    """The page that it was started from."""
    command: tuple[str, ...]
    """For a person: what to type for the same effect."""
    log: Path
    started_at_ms: int
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def command_line(self) -> str:
        """The command, quoted for a shell."""
        return shlex.join(self.command)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def output(self) -> str:
        """The end of what it printed."""
        with suppress(FileNotFoundError):
            return self.log.read_text(encoding="utf-8", errors="replace")[-_OUTPUT_CHARS:]
        return ""


class Jobs:
    """Safe to use from any thread."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}

    def start(self, title: str, arguments: tuple[str, ...], back: str, log_name: str | None = None) -> Job:
        """Starts `hermes ARGUMENTS`. UsageError if four jobs run already.

        `log_name`: the output stays under this name, for a page that shows the last one.
        """
        with self._lock:
            running = [job for job in self._jobs.values() if job.running]
            if len(running) >= _MAX_RUNNING:
                titles = "; ".join(job.title for job in running)
                raise UsageError(
                    f"{len(running)} jobs are running: {titles}", "Wait for one to end, or stop one."
                )
            job_id = os.urandom(8).hex()
            log = self.log_path(log_name or job_id)
            ensure_dir(log.parent)
            with log.open("wb") as output:
                log.chmod(0o600)
                process = subprocess.Popen(
                    [*HERMES, *arguments],
                    env={**without_stored(os.environ), "HERMES_HOME": str(self._home), "NO_COLOR": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            job = Job(job_id, title, back, ("hermes", *arguments), log, now_ms(), process)
            self._jobs[job_id] = job
            while len(self._jobs) > _MAX_KNOWN:
                self._jobs.pop(next(iter(self._jobs)))
            return job

    def log_path(self, log_name: str) -> Path:
        return logs_dir(self._home) / "web" / f"{re.sub(r'[^A-Za-z0-9_-]', '_', log_name)}.log"

    def get(self, job_id: str) -> Job:
        job = self._jobs.get(job_id) if _ID.fullmatch(job_id) else None
        if job is None:
            raise UsageError("there is no such job", "Jobs are known until the server ends.")
        return job

    def running(self) -> list[Job]:
        return [job for job in list(self._jobs.values()) if job.running]

    def stop(self, job: Job) -> None:
        """Asks it to end, then ends it."""
        for number, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            if not job.running:
                return
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(job.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                job.process.wait(patience_s)

    def close(self) -> None:
        for job in self.running():
            self.stop(job)


def run_hermes(home: Path, arguments: list[str]) -> str:
    """The output of a short command of Hermes. HermesError with its two lines if it fails."""
    try:
        done = subprocess.run(
            [*HERMES, *arguments],
            env={**without_stored(os.environ), "HERMES_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SHORT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HermesError(f"'hermes {' '.join(arguments[:2])}' took longer than {_SHORT_S:.0f} s") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"it ended with {done.returncode}"
        message = next((line for line in lines if line.startswith("error: ")), last)
        hint = next((line for line in lines if line.startswith("  fix: ")), "")
        raise HermesError(message.removeprefix("error: "), hint.removeprefix("  fix: "))
    return done.stdout.decode(errors="replace")
