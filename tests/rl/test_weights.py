"""`hermes rl weights`: where it reads, and folders that are there already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes.config.load import load
from hermes.core.clock import now_ms
from hermes.rl.results import saved_checkpoints
from hermes.rl.run import RlRun, RunStatus
from hermes.rl.run_config import RunConfig
from hermes.rl.weights.source import find_source
from hermes.training.start_weights import find_folder
from tests.cli.process import failure
from tests.rl.world import answer, hermes


@pytest.fixture
def run(tmp_path: Path, model: Path) -> RlRun:
    """One that saved a checkpoint of an adapter."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    run = RlRun(tmp_path / "home", "0123abcd")
    path = "tinker://01RUN:train:0/sampler_weights/step-2"
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model), LoraConfig(r=2, target_modules=["q_proj"])
    )
    adapted.save_pretrained(str(run.folder / "engine" / "01RUN~train~0" / "sampler_weights" / "step-2"))
    RunConfig.parse({"env": {}, "run": {"model": str(model), "service": None}}, "test").write(run.folder)
    (run.folder / "training.json").write_text(json.dumps({"kept": [[2, path, path]]}))
    run.write_status(RunStatus(started_at_ms=now_ms()))
    return run


@pytest.mark.parametrize("folder", ["01RUN~train~0", "01RUN:train:0"])
def test_checkpoints_are_found_in_folders_of_today_and_of_versions_that_wrote_colons(
    run: RlRun, folder: str, tmp_path: Path
) -> None:
    state = run.folder / "engine"
    (state / "01RUN~train~0").rename(state / folder)
    checkpoint = state / folder / "sampler_weights" / "step-2"
    (checkpoint / "checkpoint.json").write_text('{"created_s": 1}')
    path = "tinker://01RUN:train:0/sampler_weights/step-2"
    assert saved_checkpoints(run)[0]["folder"] == checkpoint
    assert find_folder(path, run.home) == checkpoint
    for name in (run.run_id, path, "tinker://01RUN:train:0"):
        assert find_source(load(environ={"HERMES_HOME": str(run.home)}), name).folder == checkpoint
    for words in ((path,), (run.run_id, "--into", "checkpoints")):
        written = answer(run.home, "rl", "weights", *words, cwd=tmp_path)["path"]
        assert written == "checkpoints/01RUN~train~0"


@pytest.mark.slow
def test_a_merged_model_is_not_written_over_anything_else(run: RlRun, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    words = ("rl", "weights", run.run_id, "--format", "merged")
    other, notes, empty = tmp_path / "other", tmp_path / "notes", tmp_path / "empty"
    for folder, name in ((other, "config.json"), (notes, "notes.txt")):
        folder.mkdir()
        (folder / name).write_text("somebody else's")
        what, how = failure(hermes(run.home, *words, "--output", str(folder)), 2)
        assert f"{folder} is not empty" in what and "not there yet" in how
        assert (folder / name).read_text() == "somebody else's"
    empty.mkdir()
    assert answer(run.home, *words, "--output", str(empty))["path"] == str(empty)
    AutoModelForCausalLM.from_pretrained(empty)


def test_a_converter_that_fails_leaves_no_half_of_a_file(run: RlRun, tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; pathlib.Path(sys.argv[3]).write_bytes(b'GGUF'); sys.exit('no gguf package')"
    )
    (tmp_path / "convert_hf_to_gguf.py").write_text(program)
    words = (
        "rl",
        "weights",
        run.run_id,
        "--format",
        "gguf",
        "--output",
        str(tmp_path / "out" / "model.gguf"),
    )
    done = hermes(run.home, *words, env={"LLAMA_CPP": str(tmp_path)})
    assert done.returncode == 1 and "no gguf package" in done.stderr and "installed" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []
