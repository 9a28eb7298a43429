"""DPO, KTO and reward models with a real engine: they learn, prove it, and resume exactly after kill -9."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hermes.errors import UsageError
from hermes.training.checkpoints import StateFile
from hermes.training.data.sft_examples import SftExample
from hermes.training.monitor.sinks import JsonLines, Sinks
from hermes.training.offline import OfflineObjective, OfflineSettings, train_offline
from hermes.training.preference.dpo import DpoObjective
from hermes.training.preference.examples import RenderedCompletion
from hermes.training.preference.kto import balanced_weights
from hermes.training.preference.losses import DpoConfig
from hermes.training.preference.reference import BASE, CROSS_ENTROPY, gradient_datums, policy_logprobs
from hermes.training.schedule import Schedule
from hermes.training.service.client import AdapterClient
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import TrainingRunSpec
from hermes.training.sft import ReplayObjective, ReplayRows, SftObjective, sft_datums
from tests.engine.http.engine_process import Server
from tests.training.conftest import MakeRun
from tests.training.preference.rows import pair_rows, unpaired_rows
from tests.training.preference.trainer import objective
from tests.training.world import metrics

STEPS = 10


@pytest.mark.parametrize("kind", ["dpo", "kto", "reward"])
def test_it_learns_what_was_preferred_and_the_sampler_follows(make_run: MakeRun, kind: str) -> None:
    run = make_run(kind, every=20)
    settings = OfflineSettings(Schedule(0.005), epochs=99, batch_size=5, max_steps=30, eval_every=10)
    done = train_offline(run, objective(kind), settings, Sinks([JsonLines(run.folder)]), lambda line: None)
    rows = metrics(run.folder)
    assert done.step == 30 and rows[-1]["train/loss"] < 0.6 * rows[0]["train/loss"]
    assert rows[-1]["eval/loss"] < rows[9]["eval/loss"] or rows[-1]["eval/loss"] < rows[0]["train/loss"]
    assert rows[-1]["probe/gap"] < 1e-3 and rows[-1]["probe/moved"] > 0
    if kind != "kto":
        assert rows[-1]["eval/rewards/accuracy"] >= 0.75, "the rule holds for pairs nobody trained on"
    else:
        assert rows[-1]["eval/rewards/margin"] > 0


def launch(kind: str, folder: Path, engine: Server, model: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.training.preference.trainer"]
    return subprocess.Popen(
        [*command, kind, str(folder), engine.url, str(model), str(STEPS)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dpo", "kto", "reward"])
def test_a_run_that_is_killed_makes_the_same_steps_as_one_that_is_not(
    kind: str, engine: Server, tiny: Path, tmp_path: Path
) -> None:
    whole = launch(kind, tmp_path / "whole", engine, tiny)
    assert whole.wait(100) == 0
    first = launch(kind, tmp_path / "cut", engine, tiny)
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith(f"step 6/{STEPS}"):
            first.kill()
            break
    first.wait()
    second = launch(kind, tmp_path / "cut", engine, tiny)
    assert second.wait(100) == 0
    assert second.stdout is not None
    printed = second.stdout.read()
    assert f"step 4/{STEPS}" not in printed and f"step 5/{STEPS}" in printed, (
        "it resumes after the checkpoint"
    )
    expected, resumed = (metrics(tmp_path / name) for name in ("whole", "cut"))
    assert [row["step"] for row in resumed] == list(range(1, STEPS + 1))
    for name in ("train/loss", "eval/loss", "optim/grad_norm"):
        values, reference = ([row.get(name, 0.0) for row in rows] for rows in (resumed, expected))
        assert values == pytest.approx(reference, rel=1e-5)


def test_a_run_goes_on_only_with_the_loss_and_the_reference_it_was_started_with(make_run: MakeRun) -> None:
    run, rows = make_run(), pair_rows(6)
    settings = OfflineSettings(Schedule(0.001), batch_size=3, max_steps=1)
    train_offline(run, DpoObjective(rows, DpoConfig(), BASE), settings, Sinks([]), lambda line: None)
    with pytest.raises(UsageError, match="another loss"):
        changed = DpoObjective(rows, DpoConfig(beta=0.2), BASE)
        train_offline(run, changed, settings, Sinks([]), lambda line: None)
    with pytest.raises(UsageError, match="another data"):
        other = DpoObjective(pair_rows(6, seed=1), DpoConfig(), BASE)
        train_offline(run, other, settings, Sinks([]), lambda line: None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_replayed_rows_keep_a_skill_that_the_verdicts_alone_unlearn(make_run: MakeRun, kind: str) -> None:
    """The skill: after 270 the model says 301, 302, 303. It is taught first, as the start of both runs."""
    skill = [
        SftExample((280 + number, 270, 301, 302, 303), (False, False, True, True, True))
        for number in range(8)
    ]
    settings = OfflineSettings(Schedule(0.01), epochs=99, batch_size=8, max_steps=20)
    warm = make_run(f"{kind}-skill")
    taught = train_offline(warm, SftObjective(skill), settings, Sinks([]), lambda line: None)
    losses = {}
    for name, weight in (("alone", 0.0), ("replay", 1.0)):
        run = make_run(f"{kind}-{name}")
        run = replace(run, lora=replace(run.lora, start=taught.weights))
        learner: OfflineObjective = objective(kind)
        if weight:
            learner = ReplayObjective(learner, ReplayRows(skill, weight))
        train_offline(run, learner, settings, Sinks([JsonLines(run.folder)]), lambda line: None)
        losses[name] = (metrics(run.folder)[-1]["rewards/margin"], skill_loss(run, skill))
    assert losses["replay"][1] < 0.2 < losses["alone"][1], losses
    assert min(margin for margin, _ in losses.values()) > 0.1, "both learned what was preferred"


def skill_loss(run: TrainingRunSpec, skill: list[SftExample]) -> float:
    """Of the run's newest weights; of a run that has not begun, of the base model."""
    state = StateFile(run.folder).state()
    with (
        closing(TokenMeter(run.folder)) as meter,
        AdapterClient(run.connection, run.lora, meter, state.weights if state else None) as client,
    ):
        return client.evaluate(sft_datums(skill)).loss


def test_a_run_with_other_replayed_rows_is_another_run(make_run: MakeRun) -> None:
    run, rows = make_run(), pair_rows(6)
    settings = OfflineSettings(Schedule(0.001), batch_size=3, max_steps=1)
    skill = [SftExample((270, 301, 302), (False, True, True))]
    objective = ReplayObjective(DpoObjective(rows, DpoConfig(), BASE), ReplayRows(skill, 0.5))
    train_offline(run, objective, settings, Sinks([JsonLines(run.folder)]), lambda line: None)
    untrained = skill_loss(make_run("untrained"), skill)
    assert metrics(run.folder)[0]["replay/loss"] == pytest.approx(untrained, rel=1e-4), "whatever its weight"
    with pytest.raises(UsageError, match="another replay"):
        changed = ReplayObjective(DpoObjective(rows, DpoConfig(), BASE), ReplayRows(skill, 1.0))
        train_offline(run, changed, settings, Sinks([]), lambda line: None)


def completion(*tokens: int) -> RenderedCompletion:
    return RenderedCompletion((SftExample((270, 271, *tokens), (False, False, *(True for _ in tokens))),))


def test_an_answer_in_several_pairs_is_computed_once_and_its_gradients_add_up(make_run: MakeRun) -> None:
    first, second, third = completion(280, 281), completion(282), completion(283, 284, 285)
    repeated, gradients = [first, second, third, second, first], [-0.5, 0.25, -1.0, 0.75, 0.125]
    merged = gradient_datums(repeated, gradients)
    apart = [
        datum
        for entry, gradient in zip(repeated, gradients, strict=True)
        for datum in gradient_datums([entry], [gradient])
    ]
    assert (len(merged), len(apart)) == (3, 5)
    run = make_run()
    with closing(TokenMeter(run.folder)) as meter, AdapterClient(run.connection, run.lora, meter) as client:
        norms = []
        for data in (merged, apart):
            client.forward_backward(data, CROSS_ENTROPY)
            figures = client.optim_step(0.0, 0.9, 0.95, 0.0)  # at a rate of 0, to clear the gradients
            norms.append({name: value for name, value in figures.items() if name.startswith("grad_norm")})
        together = policy_logprobs(client, repeated)
        alone = [policy_logprobs(client, [entry])[0] for entry in repeated]
    assert norms[0] and norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert together == pytest.approx(alone, rel=1e-5) and together[0] == together[4]


def test_the_weights_of_the_classes_make_both_count_equally() -> None:
    rows = unpaired_rows(12).train
    good, bad = balanced_weights(rows)
    liked = sum(row.desirable for row in rows)
    assert good * liked == pytest.approx(bad * (len(rows) - liked)) and min(good, bad) == 1.0
