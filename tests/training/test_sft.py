"""SFT with a real engine: it learns, it resumes exactly, it stops in time, and says what is wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hermes.errors import HermesError, UsageError
from hermes.models.local.bundled import prepare
from hermes.store import Reader
from hermes.training.data.sft_examples import SftExamples, from_files, gather
from hermes.training.monitor.sinks import Sinks
from hermes.training.schedule import Schedule
from hermes.training.service.client import EngineError, ServiceConnection
from hermes.training.session import TrainingRunSpec, check_finite
from hermes.training.sft import SftSettings, examples_of_step, sft_datums, train
from tests.engine.http.engine_process import launch
from tests.training.conftest import MakeRun, StartTrainer
from tests.training.sft_runs import few, lesson, quiet, write_rows
from tests.training.world import Process, metrics

SinksOf = Callable[[TrainingRunSpec], Sinks]


def losses(run: TrainingRunSpec) -> dict[int, float]:
    return {int(row["step"]): row["train/loss"] for row in metrics(run.folder)}


def test_a_handful_of_rows_is_learned_by_heart(make_run: MakeRun, sinks_of: SinksOf) -> None:
    run = make_run()
    done = train(run, few(), SftSettings(Schedule(0.01), epochs=30, batch_size=3), sinks_of(run), quiet)
    found = losses(run)
    assert done.step == 60 and done.reason == "all steps made"
    assert found[1] > 5 and max(found[59], found[60]) < 0.3
    assert metrics(run.folder)[0]["probe/gap"] < 1e-4


@pytest.mark.slow
def test_a_run_that_was_killed_makes_the_same_steps_as_one_that_was_not(
    start: StartTrainer, tmp_path: Path
) -> None:
    file = write_rows(tmp_path / "rows.jsonl")
    given = ("--epochs", "20", "--batch-size", "3", "--learning-rate", "0.01", "--checkpoint-every", "7")
    whole = start("sft", str(file), *given, "--name", "whole")
    assert whole.wait() == 0, whole.output
    first = start("sft", str(file), *given, "--name", "cut")
    first.until(r"step 11/40")
    first.kill()
    second = start("sft", str(file), *given, "--name", "cut")
    assert second.wait() == 0, second.output
    assert "step 11/40" not in first.output.partition("step 12/40")[2]
    runs = [metrics(tmp_path / "home" / "runs" / name) for name in ("whole", "cut")]
    assert [row["step"] for row in runs[1]] == list(range(1, 41))
    expected, found = ([row["train/loss"] for row in rows] for rows in runs)
    assert found == pytest.approx(expected, rel=1e-6)
    with Reader(tmp_path / "home" / "hermes.db") as reader:
        stored = [step.values["train/loss"] for step in reader.metrics("cut")]
    assert stored == pytest.approx(expected, rel=1e-6)


def test_the_same_command_after_the_end_does_nothing_and_says_so(
    make_run: MakeRun, sinks_of: SinksOf
) -> None:
    run, settings = make_run(), SftSettings(Schedule(0.01), max_steps=2, batch_size=3)
    first = train(run, few(), settings, sinks_of(run), quiet)
    assert train(run, few(), settings, Sinks([]), quiet).weights == first.weights


def test_a_run_goes_on_only_with_the_data_it_was_started_with(make_run: MakeRun, sinks_of: SinksOf) -> None:
    run, settings = make_run(), SftSettings(Schedule(0.01), max_steps=1, batch_size=3)
    train(run, few(), settings, sinks_of(run), quiet)
    with pytest.raises(UsageError, match="another data"):
        train(run, few(5), settings, sinks_of(run), quiet)


def test_training_ends_early_when_held_out_loss_stops_falling_and_the_best_is_kept(
    make_run: MakeRun, sinks_of: SinksOf
) -> None:
    run = make_run(every=100)
    lessons = SftExamples(train=few().train, held_out=[lesson(50), lesson(51)])
    settings = SftSettings(Schedule(0.02), epochs=50, batch_size=3, eval_every=2, patience=2)
    done = train(run, lessons, settings, sinks_of(run), quiet)
    held_out = {row["step"]: row["eval/loss"] for row in metrics(run.folder) if "eval/loss" in row}
    assert done.reason == "held-out loss stopped falling" and done.step < 100
    assert done.best is not None and held_out[done.best.step] == min(held_out.values()) == done.best.value
    assert list(held_out.values())[-2:] >= [min(held_out.values())] * 2


def test_only_what_the_assistant_said_is_weighted_and_the_weights_add_up_to_one() -> None:
    made = sft_datums([lesson(0), lesson(1, 4)])
    weights = [one.loss_fn_inputs["weights"].tolist() for one in made]
    targets = made[0].loss_fn_inputs["target_tokens"].tolist()
    assert weights[0][:2] == [0, 0] and all(weights[0][2:]) and targets == list(lesson(0).tokens[1:])
    assert sum(map(sum, weights)) == pytest.approx(1.0, rel=1e-6)


def test_every_epoch_has_each_lesson_once_in_an_order_of_its_own() -> None:
    lessons = [lesson(number) for number in range(7)]
    epochs = [
        [one.task for step in steps for one in examples_of_step(lessons, step, 3, 1)]
        for steps in ((1, 2, 3), (4, 5, 6))
    ]
    assert [sorted(epoch) for epoch in epochs] == [[str(number) for number in range(7)]] * 2
    assert epochs[0] != epochs[1]


def test_an_engine_that_is_not_there_is_said_at_once(make_run: MakeRun, sinks_of: SinksOf) -> None:
    run = make_run(url="http://127.0.0.1:9")
    with pytest.raises(EngineError, match="no engine answers") as caught:
        train(run, few(), SftSettings(Schedule(0.01)), sinks_of(run), quiet)
    assert caught.value.hint == "start it with: hermes engine serve"


def test_a_wrong_model_name_is_the_engines_own_words(make_run: MakeRun, sinks_of: SinksOf) -> None:
    run = make_run()
    run = replace(run, lora=replace(run.lora, base_model="no/such-model"))
    with pytest.raises(EngineError, match="no/such-model"):
        train(run, few(), SftSettings(Schedule(0.01)), sinks_of(run), quiet)


@pytest.mark.slow
def test_a_key_that_the_engine_refuses_is_said_with_the_way_out(
    make_run: MakeRun, sinks_of: SinksOf, tiny: Path, tmp_path: Path
) -> None:
    guarded = launch(tiny, tmp_path / "engine", HERMES_ENGINE_TOKEN="another-token-another-token")
    try:
        run = replace(make_run(), connection=ServiceConnection(guarded.url, "tml-wrong"))
        with pytest.raises(EngineError, match="refused the key") as caught:
            train(run, few(), SftSettings(Schedule(0.01)), sinks_of(run), quiet)
        assert "TINKER_API_KEY" in caught.value.hint
    finally:
        guarded.kill()


@pytest.mark.slow
def test_the_bundled_model_learns_conversations_from_a_file(bundled_home: Path, tmp_path: Path) -> None:
    folder = prepare(bundled_home)
    rows = tmp_path / "rows.jsonl"
    said = [("What is the word?", "Xylophone, always."), ("And the number?", "Seventeen and a half.")]
    rows.write_text(
        "".join(
            json.dumps({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]})
            + "\n"
            for q, a in said
        )
    )
    engine = launch(folder, tmp_path / "engine")
    try:
        given = ("--base-model", str(folder), "--service", engine.url, "--rank", "8", "--epochs", "12")
        process = Process(tmp_path / "home", "train", "sft", str(rows), *given, "--batch-size", "2", "--json")
        assert process.wait(300) == 0, process.output
        done = json.loads(process.output.splitlines()[-1])
        losses = [row["train/loss"] for row in metrics(Path(done["run_dir"]))]
        assert losses[0] > 2 and losses[-1] < 0.2
        assert done["step"] == 12 and done["sampler"].startswith("tinker://")
    finally:
        engine.kill()


def test_a_learning_rate_that_breaks_the_weights_ends_the_run_with_a_reason(
    make_run: MakeRun, sinks_of: SinksOf
) -> None:
    run = make_run()
    with pytest.raises(HermesError, match="the gradient is 0 at a loss of 6") as caught:
        train(run, few(), SftSettings(Schedule(1e6), epochs=20, clip_norm=0.0), sinks_of(run), quiet)
    assert "lower learning rate" in caught.value.hint


def test_a_number_that_is_not_finite_ends_the_run_with_its_name() -> None:
    check_finite({"train/loss": 1.0})
    with pytest.raises(HermesError, match=r"^optim/grad_norm, train/loss is not a finite number"):
        check_finite({"train/loss": float("nan"), "optim/grad_norm": float("inf"), "x": 0.0})


def test_rows_that_are_too_long_are_left_out_and_nothing_left_is_an_error(tmp_path: Path) -> None:
    file, left_out = write_rows(tmp_path / "rows.jsonl"), Counter[str]()
    lessons = list(from_files([file], pytest.fail, left_out))
    assert [replace(lesson, prompt="") for lesson in lessons] == few().train
    with pytest.raises(HermesError, match="6 longer than 10 tokens"):
        gather(lessons, left_out, longest=10, eval_share=0.0)


def test_a_row_that_cannot_be_read_is_named_with_its_line(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl")
    file.write_text(file.read_text() + '{"text": "no turns"}\n')
    with pytest.raises(UsageError, match=r"rows\.jsonl:7: "):
        list(from_files([file], pytest.fail, Counter()))
