"""`hermes engine import`: an adapter of PEFT's is sampled, named, trained on from, and still there later."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from tinker import types as tt

from hermes.engine.lora.adapter_tar import Tar, unpack
from hermes.engine.types import EngineUserError
from tests.cli.process import failure, hermes
from tests.engine.http.conftest import Start
from tests.engine.http.engine_process import KEY, Server, batch, prompt
from tests.engine.http.tinker_runs import steps
from tests.engine.peft_folders import foreign

CONFIG = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "down_proj"]}
Connect = Callable[..., tinker.ServiceClient]


def pefts_logprobs(twin: Any, ids: list[int]) -> list[float]:
    with torch.no_grad():
        scores = twin(input_ids=torch.tensor([ids])).logits.log_softmax(-1)[0]
    return [scores[position, token].item() for position, token in enumerate(ids[1:])]


@pytest.mark.slow
def test_an_adapter_of_pefts_is_sampled_named_and_trained_on_and_survives_kill_9(
    start: Start, connect: Connect, tmp_path: Path, model: str
) -> None:
    twin = foreign("llama", tmp_path / "mine", **CONFIG)
    server = start(tmp_path / "state")
    said = hermes(tmp_path, "engine", "import", str(tmp_path / "mine"), "--url", server.url)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith(f"mine: rank 4, on {model}\n")
    sampler_path, path = re.findall(r"tinker://\S+", said.stdout)
    expected = pefts_logprobs(twin, prompt(10).to_ints())
    client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    sampler = client.create_sampling_client(model_path=sampler_path)
    assert sampler.compute_logprobs(prompt(10)).result()[1:] == pytest.approx(expected, abs=1e-4)
    plain = client.create_sampling_client(base_model=model).compute_logprobs(prompt(10)).result()[1:]
    assert plain != pytest.approx(expected, abs=0.1)

    server.kill()
    client.holder.close()
    again = start(tmp_path / "state")
    client = connect(again)
    training = client.create_training_client_from_state(path)
    assert training.get_info().lora_rank == 4
    first = training.forward([_whole(prompt(10).to_ints())], "cross_entropy").result()
    assert first.loss_fn_outputs[0]["logprobs"].tolist() == pytest.approx(expected, abs=1e-4)
    losses = steps(training, range(1))
    trained = training.forward(batch(2), "cross_entropy").result().metrics["loss:sum"]
    assert trained < losses[0]
    with pytest.raises(tinker.RequestFailedError, match="optimizer state"):
        client.create_training_client_from_state_with_optimizer(path).get_info()
    named = {one["id"]: one for one in again.ask("GET", "/v1/models").json()["data"]}
    assert {"mine", path, sampler_path} <= named.keys()
    assert "policy" not in named  # nothing was handed over by a run of this engine
    asked = {"model": "mine", "prompt": prompt(5).to_ints(), "max_tokens": 2}
    assert (
        again.ask("POST", "/v1/completions", asked)
        .json()["metadata"]["weight_version"]
        .startswith(f"{sampler_path}@")
    )


def _whole(ids: list[int]) -> tt.Datum:
    inputs: dict[str, Any] = {"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)}
    return tt.Datum(model_input=tt.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "good"
    foreign("llama", folder, **CONFIG)
    return folder


def _of_another_model(folder: Path) -> None:
    foreign("qwen3", folder, **CONFIG)  # as many layers of the same names, of other sizes


def _of_modules_we_do_not_adapt(folder: Path) -> None:
    foreign("llama", folder, r=2, target_modules=["embed_tokens"])


def _of_another_kind(folder: Path) -> None:
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "use_dora": True}))


def _cut(folder: Path) -> None:
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


BROKEN: list[tuple[Callable[[Path], None], str]] = [
    (_of_another_model, r"q_proj maps 64 to 64, but has"),
    (_of_modules_we_do_not_adapt, r"this model has no place for \S*embed_tokens"),
    (_of_another_kind, "it sets use_dora"),
    (_cut, "is not an adapter that can be read"),
]


@pytest.mark.parametrize(("change", "words"), BROKEN)
def test_what_cannot_be_used_is_refused_and_leaves_nothing(
    shared: Server, adapter: Path, tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(adapter, folder)
    change(folder)
    ephemeral = set(shared.state_dir.glob(".ephemeral/*"))  # of other tests of this engine
    refused = hermes(tmp_path, "engine", "import", str(folder), "--url", shared.url)
    assert refused.returncode == 1
    assert re.search(rf"returned 400: .*'broken'.*{words}", refused.stderr), refused.stderr
    assert not (shared.state_dir / "broken").exists()
    assert set(shared.state_dir.glob(".ephemeral/*")) <= ephemeral
    assert shared.ask("GET", "/v1/models/broken").status == 404


def test_a_folder_without_an_adapter_is_no_matter_for_the_engine(tmp_path: Path, tiny_folder: Path) -> None:
    for folder in (tiny_folder, tmp_path / "gone"):
        error, fix = failure(hermes(tmp_path, "engine", "import", str(folder)), 2)
        assert f"'{folder}' is not a PEFT adapter: it has no adapter_config.json" in error
        assert "adapter_model.safetensors" in fix


def test_a_name_is_given_once_and_means_nothing_else(
    shared: Server, adapter: Path, client: tinker.ServiceClient, model: str, tmp_path: Path
) -> None:
    training = client.create_lora_training_client(model, rank=2, user_metadata={"policy": "follows"})
    training.save_weights_for_sampler("one").result()

    def imported(name: str) -> str:
        done = hermes(tmp_path, "engine", "import", str(adapter), "--name", name, "--url", shared.url)
        return done.stdout or done.stderr

    assert imported("once").startswith("once: rank 4")
    for name in ("once", "follows", "policy"):
        assert f"the name '{name}' is taken" in imported(name)
    for name in ("a/b", "..", "spa ce", ".ephemeral"):
        assert "cannot be the name" in imported(name)
    assert "cannot be an alias" in imported(training.model_id)
    before = shared.ask("GET", "/v1/models/policy").json()["metadata"]
    assert training.model_id in before["weight_version"]


def test_an_archive_holds_the_files_and_goes_back_in(
    shared: Server, client: tinker.ServiceClient, model: str, tmp_path: Path
) -> None:
    """The way of SDKs before 0.36, and what `import` sends."""
    training = client.create_lora_training_client(model, rank=3, seed=8)
    steps(training, range(2))
    path = training.save_weights_for_sampler("tarred").result().path
    address = f"/api/v1/training_runs/{training.model_id}/checkpoints/sampler_weights/tarred/archive"
    answer = shared.ask("GET", address)  # follows the redirect
    assert answer.status == 200
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        files = {one.name: one.size for one in tar}
        tar.extractall(tmp_path / "out", filter="data")
    assert set(files) == {"adapter_config.json", "adapter_model.safetensors", "checkpoint_complete"}
    kept = shared.state_dir / training.model_id.replace(":", "~") / "sampler_weights" / "tarred"
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (kept / name).read_bytes()
    sent = shared.ask("POST", "/api/v1/import_adapter?name=back", raw=answer.body)
    assert sent.status == 200, sent
    paths = (path, sent.json()["sampler_weights"])
    first, second = (client.create_sampling_client(model_path=one) for one in paths)
    scores = first.compute_logprobs(prompt()).result()[1:]
    assert second.compute_logprobs(prompt()).result()[1:] == pytest.approx(scores, abs=1e-6)
    assert shared.ask("POST", "/api/v1/import_adapter?name=no-tar", raw=b"nothing").status == 400
    assert shared.ask("GET", f"{address}x").status == 404


def test_only_known_files_are_taken_from_a_tar(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 700)
    (tmp_path / "b").write_bytes(b"")
    tar = Tar({"a": tmp_path / "a", "../b": tmp_path / "b", "c": None})
    whole = b"".join(tar)
    assert len(whole) == tar.size_bytes
    (tmp_path / "t.tar").write_bytes(whole)
    (tmp_path / "out").mkdir()
    unpack(tmp_path / "t.tar", tmp_path / "out", ("a", "c", "d"))
    assert {one.name: one.stat().st_size for one in (tmp_path / "out").iterdir()} == {"a": 700, "c": 0}
    (tmp_path / "t.tar").write_bytes(whole[:900])
    with pytest.raises(EngineUserError, match="not a tar"):
        unpack(tmp_path / "t.tar", tmp_path / "out", ("a",))
