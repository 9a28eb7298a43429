"""Worker processes that are started before there is a job for them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.batch.progress import open_view
from hermes.batch.spec import open_run
from hermes.batch.tasks import read_dataset
from hermes.batch.workers.launch import launch, launch_early
from hermes.batch.workers.pool import Pool, RunOptions, RunResult
from hermes.batch.workers.process import ProcessWorkers
from tests.batch.drive import solve, write_tasks
from tests.batch.made import spec
from tests.fakes.provider import FakeProvider


def test_the_early_process_becomes_the_first_worker_and_others_are_started_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    dataset = read_dataset(str(write_tasks(tmp_path, 6)))
    folder = tmp_path / "run"
    with FakeProvider(solve) as provider, launch_early() as early:
        new_spec = spec(model="m", base_url=provider.base_url, toolsets=("math",))
        with open_run(folder, new_spec, accept_changes=False) as run:

            async def carried_out() -> RunResult:
                with open_view(as_json=True, title="run") as view:
                    workers = ProcessWorkers(folder, early)
                    return await Pool(folder, run, dataset, RunOptions(num_workers=2), view, workers).run()

            result = asyncio.run(carried_out())
        assert early.poll() == 0
    assert result.complete and result.worker_deaths == 0
    assert len(list((folder / "journal").glob("*.jsonl"))) == 2


def test_a_process_that_is_given_no_job_leaves_in_silence() -> None:
    with launch() as process:
        said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"")


def test_a_process_that_nobody_needed_is_gone_when_its_block_ends() -> None:
    with launch_early() as process:
        pass
    assert process.returncode is not None


def test_a_command_that_fails_before_it_has_work_leaves_no_worker_behind(tmp_path: Path) -> None:
    program = (
        "import os, runpy, sys\n"
        "from tests.batch.drive import workers_of\n"
        "sys.argv[1:] = ['batch', '--dataset-file', 'missing.jsonl', '--run-name', 'run']\n"
        "try:\n    runpy.run_module('hermes', run_name='__main__')\n"
        "except SystemExit as ending:\n    print(ending.code, workers_of(os.getpid()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HERMES_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2 []\n"
    assert "missing.jsonl" in done.stderr


def test_starting_a_process_imports_nothing_that_takes_time() -> None:
    program = (
        "import sys, hermes.cli.main, hermes.batch.workers.launch\n"
        "print([name for name in ('asyncio', 'pydantic', 'openai', 'hermes.config') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
