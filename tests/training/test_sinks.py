"""Numbers reach the store and metrics.jsonl whatever else fails."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from hermes.errors import HermesError, UsageError
from hermes.rl.run import read_metrics
from hermes.store import Reader, Writer
from hermes.training.checkpoints import (
    CheckpointRecord,
    RetentionPolicy,
    StateFile,
    TrainingState,
    add_checkpoint,
)
from hermes.training.monitor.sinks import JsonLines, Label, Sinks, StoreSink, default_sinks

LABEL = Label("r", "p", "t")


class Broken:
    """A service that is down."""

    name = "broken"

    def rewind(self, step: int) -> None:
        raise ConnectionError("nobody there")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        raise ConnectionError("nobody there")

    def close(self) -> None:
        raise ConnectionError("nobody there")


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_numbers_are_in_the_store_and_in_the_file(tmp_path: Path) -> None:
    with Writer(tmp_path / "hermes.db") as writer:
        sinks = Sinks([JsonLines(tmp_path), StoreSink(writer, "run-1")])
        for step in (1, 2):
            sinks.write(step, {"reward/mean": step / 10, "train/loss": 0.0})
    with Reader(tmp_path / "hermes.db") as reader:
        stored = reader.metrics("run-1")
        assert reader.metrics("another") == []
    assert [(one.step, one.values["reward/mean"]) for one in stored] == [(1, 0.1), (2, 0.2)]
    assert [row["reward/mean"] for row in lines(tmp_path)] == [0.1, 0.2]


def test_a_step_that_is_made_again_is_in_the_store_once(tmp_path: Path) -> None:
    with Writer(tmp_path / "hermes.db") as writer:
        for value in (0.5, 0.7):
            writer.add_metrics("r", 1, {"reward/mean": value}).result()
    with Reader(tmp_path / "hermes.db") as reader:
        assert [one.values for one in reader.metrics("r")] == [{"reward/mean": 0.5}]


def test_a_name_that_is_used_again_does_not_keep_the_numbers_of_the_run_before(tmp_path: Path) -> None:
    with Writer(tmp_path / "hermes.db") as writer:
        old, other = Sinks([StoreSink(writer, "r")]), Sinks([StoreSink(writer, "other")])
        for step in (1, 2, 3):
            old.write(step, {"reward/mean": 0.1, "old/only": 1.0})
            other.write(step, {"reward/mean": 0.5})
        new = Sinks([StoreSink(writer, "r")])
        new.rewind(0)
        new.write(1, {"reward/mean": 0.9})
        new.rewind(1)
        assert not new.failures
    with Reader(tmp_path / "hermes.db") as reader:
        (only,) = reader.metrics("r")
        assert len(reader.metrics("other")) == 3
    assert only.values["reward/mean"] == 0.9 and "old/only" not in only.values


def test_a_sink_that_fails_is_counted_and_the_others_get_everything(tmp_path: Path) -> None:
    sinks = Sinks([Broken(), JsonLines(tmp_path)])
    for step in (1, 2, 3):
        sinks.write(step, {"reward/mean": 1.0})
    sinks.close()
    assert [row["sinks/failures"] for row in lines(tmp_path)] == [0, 1, 2]
    assert sinks.failures == {"broken": 4}


def test_a_number_that_is_not_finite_is_left_out_and_counted(tmp_path: Path) -> None:
    sinks = Sinks([JsonLines(tmp_path)])
    sinks.write(1, {"reward/mean": float("nan"), "train/loss": float("inf"), "health/k3": 0.5})
    (row,) = lines(tmp_path)
    assert row["health/k3"] == 0.5 and row["sinks/not_finite"] == 2 and "reward/mean" not in row


def test_steps_that_will_be_made_again_and_torn_lines_are_taken_out(tmp_path: Path) -> None:
    sinks = Sinks([JsonLines(tmp_path)])
    for step in (1, 2, 3):
        sinks.write(step, {"x": step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "x"')
    sinks.rewind(2)
    sinks.write(3, {"x": 33})
    assert [row["x"] for row in lines(tmp_path)] == [1, 2, 33]


def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    sinks = Sinks([])
    sinks.add("tensorboard", tmp_path, LABEL, {})
    sinks.write(1, {"reward/mean": 0.25})
    sinks.close()
    assert not sinks.failures
    written = b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())
    assert b"reward/mean" in written


def test_a_sink_that_is_not_installed_or_not_known_is_said_before_the_run(tmp_path: Path) -> None:
    if find_spec("trackio") is None:
        with pytest.raises(HermesError, match="the sink trackio needs the package 'trackio'") as caught:
            Sinks([]).add("trackio", tmp_path, LABEL, {})
        assert caught.value.hint == "pip install trackio"
    with pytest.raises(UsageError, match="no sink 'paper'"):
        Sinks([]).add("paper", tmp_path, LABEL, {})
    assert default_sinks({"WANDB_API_KEY": "k"}) == ("wandb",)
    assert default_sinks({}) == default_sinks({"WANDB_API_KEY": "k", "WANDB_MODE": "disabled"}) == ()


def test_the_last_checkpoints_and_the_best_stay_and_the_others_go() -> None:
    state, gone = TrainingState("rl", {}), []
    for step, value in ((5, math.nan), (10, 0.9), (15, 0.5), (20, 0.4), (25, None)):
        new = CheckpointRecord(step, f"w{step}", f"s{step}", value)
        state, now = add_checkpoint(state, new, RetentionPolicy(5, 2), higher_is_better=True)
        gone += [one.step for one in now]
    assert [one.step for one in state.kept] == [20, 25] and state.best is not None and state.best.step == 10
    assert gone == [5, 15]


def test_a_checkpoint_settles_the_batches_it_holds_and_still_owes_the_others() -> None:
    state = TrainingState("rl", {}, taken=(4, 5, 6, 7))
    state, _ = add_checkpoint(
        state, CheckpointRecord(2, "w", "s"), RetentionPolicy(), higher_is_better=True, unacked=[6, 7]
    )
    assert state.settled == (4, 5) and state.taken == (6, 7)


def test_the_state_survives_writing_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    kept = CheckpointRecord(5, "tinker://r/weights/step-5", "tinker://r/sampler_weights/step-5", 0.5)
    state = TrainingState("rl", {"rank": 8}, (kept,), kept, (7, 8), (5, 6), 8, (1, 2, 3))
    file.write(state)
    assert file.read("rl", {"rank": 8}) == state
    with pytest.raises(UsageError, match="another rank"):
        file.read("rl", {"rank": 16})
    with pytest.raises(UsageError, match="another kind"):
        file.read("sft", {"rank": 8})
    file.path.write_text(file.path.read_text()[:40])
    with pytest.raises(HermesError, match="is damaged"):
        file.read("rl", {"rank": 8})


def test_a_torn_line_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path)
    sink.write(1, {"reward/mean": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')
    sink.write(3, {"reward/mean": 0.7})
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 3]
