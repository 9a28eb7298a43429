"""What Ray and trackio open and leave when Hermes starts them; each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

from tests.security import sockets
from tests.security.sockets import is_loopback

LISTENING = Path(sockets.__file__).read_text()
RAY = """
import json, secrets
from hermes.cluster import connect
connect.prepare(None, insecure=False)
with connect.open_cluster(None, 1) as ray:
    assert ray.get(ray.remote(lambda: 7).remote()) == 7
    context = ray.get_runtime_context()
    address = context.gcs_address
    accepted = {
        mode: connect._accepts(address, {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": secrets.token_hex(32)})
        for mode in ("disabled", "token")
    }
    accepted["own"] = connect._accepts(address, {})
    from ray._private.worker import _global_node
    figures = {
        "listening": sorted(listening()), "accepted": accepted, "dashboard": _global_node.webui_url or "",
        "folder": oct(Path(_global_node.get_temp_dir_path()).parent.stat().st_mode & 0o777),
    }
print(json.dumps(figures))  # what is printed within the block goes nowhere
"""
TRACKIO = """
import json, sys
from hermes.training.monitor.sinks import Label, Sinks
sinks = Sinks([])
sinks.add("trackio", Path(sys.argv[1]), Label("run-1", "project-1", "title-1"), {"rank": 8})
sinks.write(1, {"reward/mean": 0.5})
during = listening()
sinks.close()
print(json.dumps({"listening": [*during, *listening()], "failures": sinks.failures}))
"""


WANDB = """
import json, sys
from hermes.training.monitor.sinks import Label, Sinks
sinks = Sinks([])
sinks.add("wandb-offline", Path(sys.argv[1]), Label("run-1", "project-1", "title-1"), {"rank": 8})
sinks.write(1, {"reward/mean": 0.5})
during = listening()
paths = {line.split()[7] for line in Path("/proc/net/unix").read_text().splitlines()[1:] if "wandb" in line}
open_to_all = [
    path for path in paths - set(json.loads(sys.argv[2]))
    if Path(path).stat().st_mode & 0o022 and Path(path).parent.stat().st_mode & 0o011
]
sinks.close()
print(json.dumps({"listening": [*during, *listening()], "failures": sinks.failures, "open": open_to_all}))
"""


def needs(package: str) -> None:
    try:
        distribution(package)
    except PackageNotFoundError:
        pytest.skip(f"the package {package} is not installed")
    if not Path("/proc/net/tcp").exists():
        pytest.skip("sockets are listed in /proc, which is Linux's")


def run(script: str, folder: Path, *arguments: str) -> dict[str, Any]:
    environ = {**os.environ, "HOME": str(folder), "TRACKIO_DIR": str(folder / "trackio")}
    done = subprocess.run(
        [sys.executable, "-c", LISTENING + script, str(folder), *arguments],
        env={name: value for name, value in environ.items() if not name.startswith("RAY_")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_our_ray_cluster_listens_on_loopback_has_no_dashboard_and_wants_its_token(tmp_path: Path) -> None:
    needs("ray")
    figures = run(RAY, tmp_path)
    assert figures["listening"]
    assert [end for end in figures["listening"] if not is_loopback(end[0])] == []
    assert figures["accepted"] == {"disabled": False, "token": False, "own": True}
    assert figures["dashboard"] == "", "the API of jobs is a part of the dashboard"
    assert figures["folder"] == "0o700"


def test_trackio_opens_no_port_and_stores_only_the_metrics_of_the_run(tmp_path: Path) -> None:
    needs("trackio")
    figures = run(TRACKIO, tmp_path)
    assert figures == {"listening": [], "failures": {}}
    assert (tmp_path / "trackio" / "project-1.db").exists()


def test_wandb_opens_no_port_and_no_socket_that_others_can_connect_to(tmp_path: Path) -> None:
    needs("wandb")
    before = [line.split()[7] for line in Path("/proc/net/unix").read_text().splitlines() if "wandb" in line]
    figures = run(WANDB, tmp_path, json.dumps(before))
    assert figures == {"listening": [], "failures": {}, "open": []}
