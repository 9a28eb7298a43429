"""Runs that begin with the weights of others: by path, by folder, by the name of a run, on any engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from hermes.errors import HermesError, UsageError
from hermes.rl.run import find_run
from hermes.training.monitor.sinks import Sinks
from hermes.training.schedule import Schedule
from hermes.training.service.client import AdapterClient, ServiceConnection
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import TrainingRunSpec, TrainResult
from hermes.training.sft import SftSettings, train
from hermes.training.start_weights import checkpoint_folder, find_folder, find_weights, rank_of
from tests.cli.process import failure, hermes
from tests.engine.http.engine_process import KEY, Server, launch
from tests.ports import free_port
from tests.rl.world import answer, how_it_ended, make_home, tiny_model
from tests.rl.world import hermes as rl_hermes
from tests.training.conftest import MakeRun
from tests.training.sft_runs import few, quiet
from tests.training.world import Process

TEXT = [5, 6, 7, 300, 301, 302, 303]


@pytest.fixture
def warm(
    make_run: MakeRun, sinks_of: Callable[[TrainingRunSpec], Sinks]
) -> tuple[TrainingRunSpec, TrainResult]:
    """A finished SFT run."""
    run = make_run("warm")
    return run, train(
        run, few(), SftSettings(Schedule(0.02), max_steps=3, batch_size=3), sinks_of(run), quiet
    )


@pytest.fixture
def another(tiny: Path, tmp_path: Path) -> Iterator[Server]:
    server = launch(tiny, tmp_path / "another")
    yield server
    server.kill()


def scores(run: TrainingRunSpec, start: str | None, connection: ServiceConnection) -> list[float]:
    lora = replace(run.lora, start=start)
    with closing(TokenMeter(run.folder)) as meter, AdapterClient(connection, lora, meter) as client:
        return client.forward([TEXT])[0]


def test_a_folder_is_given_to_an_engine_that_has_never_seen_it(
    warm: tuple[TrainingRunSpec, TrainResult], engine: Server, another: Server
) -> None:
    run, done = warm
    learned = scores(run, done.weights, run.connection)
    assert learned != pytest.approx(scores(run, None, run.connection), abs=1e-2)
    folder = checkpoint_folder(engine.state_dir, done.weights)
    assert rank_of(folder) == run.lora.rank
    elsewhere = replace(run.connection, url=another.url)
    assert scores(run, str(folder), elsewhere) == pytest.approx(learned, abs=1e-5)


def test_weights_are_found_by_path_by_folder_and_by_the_name_of_a_run(
    warm: tuple[TrainingRunSpec, TrainResult], engine: Server, tmp_path: Path
) -> None:
    run, done = warm
    assert find_weights(done.weights, tmp_path) == done.weights
    assert find_weights("warm", tmp_path) == find_weights(str(run.folder), tmp_path) == done.weights
    folder = checkpoint_folder(engine.state_dir, done.weights)
    assert find_weights(str(folder), tmp_path) == str(folder)
    (tmp_path / "engine").symlink_to(engine.state_dir)
    assert find_folder("warm", tmp_path).resolve() == folder.resolve()


def test_rl_commands_say_what_a_run_of_train_is_and_how_to_go_on_from_it(
    warm: tuple[TrainingRunSpec, TrainResult], tmp_path: Path
) -> None:
    what, fix = failure(hermes(tmp_path, "rl", "status", "warm"), 2)
    assert what.startswith("'warm' is a run of hermes train") and "hermes rl weights warm" in fix


def exported(home: Path, *words: str, **more: Any) -> Path:
    """The folder that `hermes rl weights` names."""
    return Path(answer(home, "rl", "weights", *words, **more)["path"])


def same_adapter(folder: Path, saved: Path, base_model: str) -> bool:
    named = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    name = "adapter_model.safetensors"
    return bool(named == base_model and (folder / name).read_bytes() == (saved / name).read_bytes())


def test_weights_of_a_train_run_and_of_a_tinker_path_are_written_from_the_engines_files(
    warm: tuple[TrainingRunSpec, TrainResult], engine: Server, tmp_path: Path
) -> None:
    run, done = warm
    (tmp_path / "engine").symlink_to(engine.state_dir)
    saved, base = checkpoint_folder(engine.state_dir, done.weights), run.lora.base_model
    folder = exported(tmp_path, "warm")
    assert folder == run.folder / "weights" / f"step-{done.step}" and same_adapter(folder, saved, base)
    assert exported(tmp_path, str(run.folder), "--step", str(done.step)) == folder
    run_id = done.weights.removeprefix("tinker://").split("/")[0].replace(":", "~")
    for path in (done.weights, done.sampler, f"tinker://{run_id}"):
        assert exported(tmp_path, path, cwd=tmp_path) == Path("checkpoints") / run_id
    assert same_adapter(tmp_path / "checkpoints" / run_id, saved, base)
    (tmp_path / "checkpoints" / run_id / "adapter_model.safetensors").write_bytes(b"another adapter")
    done_again = rl_hermes(tmp_path, "rl", "weights", done.weights, cwd=tmp_path)
    what, fix = failure(done_again, 2)
    assert "has other weights already" in what and "--output" in fix
    assert exported(tmp_path, done.weights, "--output", str(tmp_path / "out")) == tmp_path / "out"


@pytest.mark.slow
def test_weights_that_are_on_no_disk_here_are_downloaded_from_the_service(
    warm: tuple[TrainingRunSpec, TrainResult], engine: Server, tmp_path: Path
) -> None:
    run, done = warm
    key = {"TINKER_API_KEY": KEY}
    saved = checkpoint_folder(engine.state_dir, done.weights)
    folder = exported(tmp_path, "warm", env={**key, "TINKER_BASE_URL": engine.url})
    assert same_adapter(folder, saved, run.lora.base_model)
    words = ("--service", engine.url, "--output")
    for name, path in (("sampler", done.sampler), ("run", done.weights.rsplit("/", 2)[0])):
        folder = exported(tmp_path, path, *words, str(tmp_path / name), env=key)
        assert same_adapter(folder, saved, run.lora.base_model)
    lost = done.sampler.replace(f"step-{done.step}", "step-99")
    what, fix = failure(rl_hermes(tmp_path, "rl", "weights", lost, *words, str(tmp_path / "x"), env=key), 1)
    assert "step-99 to export" in what and done.weights in fix and not (tmp_path / "x").exists()


def test_weights_that_cannot_be_named_are_refused_with_the_reason(
    warm: tuple[TrainingRunSpec, TrainResult], tmp_path: Path
) -> None:
    _, done = warm
    steps = failure(hermes(tmp_path, "rl", "weights", "warm", "--step", "99"), 2)
    assert steps == ("run warm has no checkpoint of step 99", f"it has: {done.step}")
    step = failure(hermes(tmp_path, "rl", "weights", done.weights, "--step", "2"), 2)
    assert "--step does not apply" in step[0]
    for path in ("tinker://", "tinker://a/b", "tinker://../weights/x", "tinker://a/wheels/b"):
        assert "is not the path of a checkpoint" in failure(hermes(tmp_path, "rl", "weights", path), 2)[0]
    closed = ("--service", f"http://127.0.0.1:{free_port()}")
    what, fix = failure(hermes(tmp_path, "rl", "weights", done.weights, *closed), 1)
    assert "no engine answers" in what and "hermes engine serve" in fix
    assert failure(hermes(tmp_path, "rl", "weights", "nobody"), 2)[0] == "there is no run 'nobody'"


def test_weights_that_are_not_there_are_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no weights called 'nobody'"):
        find_weights("nobody", tmp_path)
    with pytest.raises(UsageError, match="not with an engine of this machine"):
        find_folder("tinker://x:train:0/weights/step-1", tmp_path)
    begun = tmp_path / "runs" / "begun"
    begun.mkdir(parents=True)
    (begun / "training.json").write_text(
        json.dumps({"format": 1, "kind": "rl", "settings": {}, "kept": [], "best": None})
    )
    with pytest.raises(UsageError, match="has no checkpoint yet"):
        find_weights("begun", tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(HermesError, match="cannot be read"):
        rank_of(tmp_path)
    what, fix = failure(hermes(tmp_path, "train", "grpo", "--start", "nobody"), 2)
    assert what == "there are no weights called 'nobody'" and "PEFT" in fix


def test_a_service_takes_no_files(warm: tuple[TrainingRunSpec, TrainResult], tmp_path: Path) -> None:
    from hermes.training.service.client import upload_weights

    with pytest.raises(UsageError, match="a service does not take the files"):
        upload_weights(ServiceConnection("managed", "tml-x"), str(tmp_path))
    assert (
        upload_weights(ServiceConnection("managed", "tml-x"), "tinker://a/weights/b")
        == "tinker://a/weights/b"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["warm", "policy"])
def test_an_rl_run_goes_on_from_what_supervised_training_has_learned(name: str, tmp_path: Path) -> None:
    """`hermes train sft` at an engine, then `hermes rl start` with one of its own: one step from there.

    The weights are named by their run, or as the policy that was promoted.
    """
    model = tiny_model(tmp_path / "model")
    home = make_home(tmp_path / "home", model, total_steps=1, learning_rate=1e-4)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"input_ids": [1, 60, 61, 62, 63, 2], "mask": [0, 1, 1, 1, 1, 1]}) + "\n")
    engine = launch(model, home / "engine")
    try:
        words = (
            "--base-model",
            str(model),
            "--service",
            engine.url,
            "--rank",
            "6",
            "--learning-rate",
            "0.05",
        )
        sft = Process(home, "train", "sft", str(rows), "--name", "warm", *words, "--epochs", "3", "--json")
        assert sft.wait() == 0, sft.output
    finally:
        engine.kill()
    done = json.loads(sft.output.splitlines()[-1])
    if name == "policy":
        promoted = hermes(home, "policy", "promote", done["weights"], "--base-model", str(model))
        assert promoted.returncode == 0, promoted.stderr
    edits = ("group_size=4", "batch_size=8", f"start_from={name}")
    flags = [word for edit in edits for word in ("--set", edit)]
    run = find_run(home, answer(home, "rl", "start", "--env", "letters", *flags)["run_id"])
    assert how_it_ended(run) == "completed: None"
    config = run.config().tinker
    assert config.lora_rank == 6 and config.start_from.endswith("weights/step-3")
    learned, gone_on = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (
            checkpoint_folder(home / "engine", done["weights"]),
            Path(answer(home, "rl", "weights", run.run_id)["path"]),
        )
    )
    moved = max(float(abs(gone_on[name] - learned[name]).max()) for name in learned)
    far = max(float(abs(learned[name]).max()) for name in learned if "lora_B" in name)
    assert 0 < moved < 2e-4 and far > 0.01, (moved, far)
    nothing = hermes(home, "rl", "start", "--env", "letters", "--set", "start_from=nobody")
    assert nothing.returncode == 2 and "there are no weights called 'nobody'" in nothing.stderr
