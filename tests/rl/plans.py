"""A run that is planned and not started."""

from __future__ import annotations

from pathlib import Path

from hermes.rl.run import RlRun
from hermes.rl.run_config import RunConfig


def planned_run(home: Path, api_port: int, service: str | None = None) -> RlRun:
    run = RlRun(home, "0123abcd")
    promised = {"api": api_port, "trainer" if service else "engine": 8001}
    about = {"run_id": run.run_id, "service": service, "ports": promised}
    about |= {"cwd": str(home / "gone"), "max_hours": None, "max_usd": None, "model": "m", "device": "cpu"}
    config = RunConfig.parse({"env": {}, "openai": [{"model_name": "policy"}], "run": about}, "test")
    config.assign_ports(promised)
    config.write(run.folder)
    run.log_path("api").parent.mkdir(parents=True)
    return run
