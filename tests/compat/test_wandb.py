"""W&B in an environment that serves: with the real package, offline; and with a key but no package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.compat.serving import BATCH, flags
from tests.compat.world import ROOT, SUMS, Trainer, adder, drive, end
from tests.fakes.absent import without_packages
from tests.rollouts.conftest import Client

STAND_IN = """
from hermes.compat import atropos
atropos.install()
import wandb
table = wandb.Table(columns=["a"])
table.add_data(1)
assert table.data == [[1]]
assert wandb.run is None
wandb.log({"x": wandb.Image("y"), "z": wandb.Histogram([1])})
with wandb.init(project="p") as run:
    run.summary.update({})
print(wandb.__file__)
"""


def serve(home: Path, api: Client, cwd: Path, **variables: str) -> str:
    """The log of an environment that served four batches."""
    trainer = Trainer(api)
    trainer.start()
    with adder() as model:
        settings = flags(api.port, model.base_url, total_steps=4, use_wandb=True)
        with drive(home, "serve", SUMS, *settings, cwd=cwd, **variables) as env:
            code, _, log = end(env)
    trainer.stop()
    assert code == 0, log
    assert len(trainer.groups) >= BATCH
    return log


def test_an_environment_reports_to_wandb_offline(bundled_home: Path, api: Client, tmp_path: Path) -> None:
    serve(bundled_home, api, tmp_path, WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    (record,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"train/completion_lengths" in record.read_bytes()


def test_a_key_without_the_package_is_said_once(bundled_home: Path, api: Client, tmp_path: Path) -> None:
    path = f"{without_packages(tmp_path, 'wandb')}:{ROOT}"
    log = serve(bundled_home, api, tmp_path, WANDB_API_KEY="0" * 40, PYTHONPATH=path)
    assert log.count("the package wandb is not installed") == 1
    assert "pip install 'hermes-research[wandb]'" in log


def test_wandb_that_is_not_installed_takes_everything_and_sends_nothing(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": without_packages(tmp_path, "wandb")}
    done = subprocess.run(
        [sys.executable, "-c", STAND_IN], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "stand_in" in done.stdout
