"""Around the loops: engines that are lost, samplers that are left behind, runs that are asked to end."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tinker

from hermes.training.checkpoints import CheckpointRecord, StateFile, TrainingState
from hermes.training.monitor.sinks import Sinks
from hermes.training.rl import train as train_rl
from hermes.training.schedule import Schedule
from hermes.training.service.client import EngineError, ServiceConnection
from hermes.training.session import TrainingRunSpec, retry_on_engine_loss
from hermes.training.sft import SftSettings, train
from tests.cli.process import failure, hermes
from tests.engine.http.engine_process import KEY, Server
from tests.ports import listening
from tests.training.conftest import MakeRun, StartTrainer
from tests.training.rl_runs import feeding, services, settings, trained
from tests.training.sft_runs import few, quiet, write_rows
from tests.training.world import Environment, metrics


def lost_always(run: TrainingRunSpec, checkpoint_each: bool, tries: list[int]) -> Callable[[], None]:
    """A loop whose engine is lost on every batch, which it has noted before."""

    def attempt() -> None:
        tries.append(len(tries) + 1)
        if len(tries) > 20:
            return
        kept = (CheckpointRecord(len(tries), "w", "s"),) if checkpoint_each else ()
        StateFile(run.folder).write(TrainingState("rl", {}, kept, taken=tuple(tries)))
        raise EngineError("gone", lost=True)

    return attempt


@pytest.mark.parametrize(("checkpoint_each", "expected"), [(False, 4), (True, 21)])
def test_a_run_whose_engine_is_lost_repeatedly_continues_only_while_new_checkpoints_appear(
    make_run: MakeRun, checkpoint_each: bool, expected: int
) -> None:
    run = replace(
        make_run(), connection=ServiceConnection("managed", "tml-x")
    )  # of which nothing is waited for
    tries: list[int] = []
    attempt = lost_always(run, checkpoint_each, tries)
    if checkpoint_each:
        retry_on_engine_loss(run, attempt, quiet)
    else:
        with pytest.raises(EngineError, match="gone"):
            retry_on_engine_loss(run, attempt, quiet)
    assert len(tries) == expected


def samplers(engine: Server) -> set[str]:
    rest = tinker.RestClient(base_url=engine.url, api_key=KEY)
    found = rest.list_user_checkpoints(limit=1000).result().checkpoints
    return {one.tinker_path for one in found if "/sampler_weights/" in one.tinker_path}


@pytest.mark.slow
def test_of_what_a_run_published_only_its_checkpoints_are_left_also_after_a_kill(
    make_run: MakeRun, environment: Environment, engine: Server
) -> None:
    before = samplers(engine)
    run = make_run(every=4)

    def die(line: str) -> None:
        if line.startswith("step 6/"):
            raise KeyboardInterrupt  # as a kill: nothing is tidied up

    given = settings(environment.api_url, 10)
    with feeding(environment), pytest.raises(KeyboardInterrupt):
        train_rl(run, given, replace(services(run), progress=die))
    left = samplers(engine) - before
    assert len(left) == 7, "rollouts may be under way with all of them"
    done = trained(run, environment, steps=10)
    kept = {one.sampler for one in StateFile(run.folder).read("rl", {}).kept}
    assert samplers(engine) - before == kept | ({done.best.sampler} if done.best else set())
    assert left - kept, "some were of the life that was killed"


def test_supervised_training_that_is_asked_to_end_saves_its_step_and_goes_on_later(
    start: StartTrainer, tmp_path: Path
) -> None:
    file = write_rows(tmp_path / "rows.jsonl")
    given = (str(file), "--name", "s", "--epochs", "40", "--batch-size", "3", "--learning-rate", "0.01")
    first = start("sft", *given)
    first.until(r"step 3/80")
    os.kill(first.process.pid, signal.SIGINT)
    assert first.wait() == 0, first.output
    folder = tmp_path / "home" / "runs" / "s"
    stopped = int(metrics(folder)[-1]["step"])
    assert f"stopped at step {stopped}" in first.output and stopped < 80
    assert "finishing this step and saving it; Ctrl-C again stops at once" in first.output
    assert "to go on the same command with --name s" in first.output
    assert re.search(r"step 3/80  loss .*  [0-9.]+ s  [0-9][0-9a-z .]* left\n", first.output)
    second = start("sft", *given, "--max-steps", str(stopped + 2))
    assert second.wait() == 0, second.output
    assert f"all steps made at step {stopped + 2}" in second.output
    assert [row["step"] for row in metrics(folder)] == list(range(1, stopped + 3))
    updates = [row["optim/optimizer_step"] for row in metrics(folder)]
    assert updates == list(range(1, stopped + 3)), "no step was made twice"


def test_a_run_that_goes_on_after_a_stop_is_not_finished_until_it_is(
    make_run: MakeRun, sinks_of: Callable[[TrainingRunSpec], Sinks]
) -> None:
    import threading

    run, stop = make_run(), threading.Event()
    stop.set()
    lessons, longer = few(), SftSettings(Schedule(0.01), max_steps=3, batch_size=3, epochs=9)
    done = train(run, lessons, longer, sinks_of(run), quiet, stop)
    assert (done.step, done.reason) == (1, "stopped")
    done = train(run, lessons, longer, sinks_of(run), quiet)
    assert (done.step, done.reason) == (3, "all steps made")


def test_patience_without_held_out_rows_is_refused(tmp_path: Path, tiny: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl")
    words = ("train", "sft", str(file), "--base-model", str(tiny), "--patience", "2")
    with listening() as url:
        what, fix = failure(hermes(tmp_path / "home", *words, "--service", url), 2)
    assert what == "--patience needs held-out rows, and there are none" and "--eval-share" in fix
