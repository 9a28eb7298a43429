"""A supervisor over small scripted processes, detached as the real one is: python -m tests.rl.drive RUN_DIR.

`parts.json` in the run's folder lists them. A server is ready when its file is there; a worker counts steps
into metrics.jsonl, one after the other, and carries on from the last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes.core.clock import now_ms
from hermes.rl.process import ProcessSpec
from hermes.rl.run import RlRun, RunStatus, last_step
from hermes.rl.supervise.daemon import detach
from hermes.rl.supervise.supervisor import RunSupervisor
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
SERVER = """
import sys, time
open(sys.argv[1], "w").close()
time.sleep(600)
"""
WORKER = """
import json, sys, time
path, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
try:
    done = open(path).read().count("\\n")
except FileNotFoundError:
    done = 0
open(path + ".ready", "w").close()
while done < steps:
    time.sleep(pause)
    done += 1
    with open(path, "a") as file:
        file.write(json.dumps({"step": done}) + "\\n")
"""
QUITTER = """
import sys
open(sys.argv[1], "w").close()
"""
SAVER = """
import signal, sys, time
def save(number, frame):
    signal.signal(number, signal.SIG_DFL)
    open(sys.argv[1] + ".asked", "w").close()
    time.sleep(float(sys.argv[2]))
    open(sys.argv[1] + ".saved", "w").close()
    sys.exit()
signal.signal(signal.SIGTERM, save)
open(sys.argv[1], "w").close()
time.sleep(600)
"""


def python(script: str, *arguments: object) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", script, *map(str, arguments)]


def server(run: RlRun, name: str) -> dict[str, Any]:
    ready = run.folder / f"{name}.ready"
    return {"name": name, "command": python(SERVER, ready), "ready": str(ready), "serves": True}


def worker(run: RlRun, steps: int, pause_s: float = 0.05) -> dict[str, Any]:
    command = python(WORKER, run.metrics_path, steps, pause_s)
    return {"name": "trainer", "command": command, "ready": f"{run.metrics_path}.ready", "completes": True}


def quitter(run: RlRun) -> dict[str, Any]:
    """An environment that ends well as soon as it is ready."""
    ready = run.folder / "env.ready"
    return {"name": "env", "command": python(QUITTER, ready), "ready": str(ready)}


def saver(run: RlRun, takes_s: float) -> dict[str, Any]:
    """A trainer in the middle of a step: asked to stop it saves, and a second signal ends it at once."""
    ready = run.folder / "trainer.ready"
    return {
        "name": "trainer",
        "command": python(SAVER, ready, takes_s),
        "ready": str(ready),
        "completes": True,
        "finish_s": 300.0,
    }


def start(home: Path, make: Callable[[RlRun], list[dict[str, Any]]], name: str = "0123abcd") -> RlRun:
    run = RlRun(home, name)
    run.folder.mkdir(parents=True)
    (run.folder / "parts.json").write_text(json.dumps(make(run)))
    run.write_status(RunStatus(started_at_ms=now_ms()))
    spawn(run)
    return run


def spawn(run: RlRun) -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.rl.drive", str(run.folder)],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )


def wait(run: RlRun, reached: Callable[[RunStatus], bool]) -> RunStatus:
    """The first status of the run for which `reached` holds."""
    return wait_until(lambda: status if reached(status := run.status()) else None)


def ended(status: RunStatus) -> bool:
    return status.state.ended


def steps(run: RlRun) -> list[int]:
    return [json.loads(line)["step"] for line in run.metrics_path.read_text().splitlines()]


def _own(run: RlRun) -> None:
    specs = json.loads((run.folder / "parts.json").read_text())
    hours = float(os.environ["MAX_HOURS"]) if "MAX_HOURS" in os.environ else None

    def plan() -> list[ProcessSpec]:
        return [
            ProcessSpec(
                spec["name"],
                tuple(spec["command"]),
                run.log_path(spec["name"]),
                Path(spec["ready"]).exists,
                restart_with=tuple(spec.get("restart_with", ())),
                completes_run=spec.get("completes", False),
                is_server=spec.get("serves", False),
                start_patience_s=spec.get("patience_s", 30.0),
                finish_patience_s=spec.get("finish_s", 0.0),
            )
            for spec in specs
        ]

    def reassign_port(part: str) -> bool:
        taken = any("it is taken" in line for line in run.last_lines(part, 4))
        (run.folder / "moved").touch()
        return taken

    RunSupervisor(
        run,
        plan,
        reassign_port=reassign_port,
        cwd=run.folder,
        max_hours=hours,
        progress=lambda: last_step(run),
        is_starving=(run.folder / "starving").exists,
        idle_check_s=0.2,
    ).supervise()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    detach(RlRun(folder.parents[1], folder.name), _own)
