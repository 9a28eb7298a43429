"""Older releases of the public SDK, as they were published, against this engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.http.conftest import Start
from tests.engine.http.engine_process import KEY, tokens

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CLIENT = """
import io, json, sys, tarfile, urllib.request, warnings
warnings.simplefilter("ignore")
import tinker
from tinker import types
url, key, model, ids = *sys.argv[1:4], json.loads(sys.argv[4])
client = tinker.ServiceClient(base_url=url, api_key=key)
data = [types.Datum(
    model_input=types.ModelInput.from_ints(ids[:-1]),
    loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)},
)]

def steps(training, count):
    losses = []
    for _ in range(count):
        output = training.forward_backward(data, "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        losses.append(-sum(output.result().loss_fn_outputs[0]["logprobs"].tolist()))
    return losses

training = client.create_lora_training_client(base_model=model, rank=4, seed=1)
before = steps(training, 2)
path = training.save_state("two").result().path
sampler_path = training.save_weights_for_sampler("two").result().path
unbroken = steps(training, 2)
resumed = steps(client.create_training_client_from_state_with_optimizer(path), 2)
sampler = client.create_sampling_client(model_path=sampler_path)
prompt = types.ModelInput.from_ints(ids[:5])
params = types.SamplingParams(max_tokens=6, temperature=0.0, stop=[])
sampled = sampler.sample(prompt, num_samples=2, sampling_params=params).result().sequences
rest = client.create_rest_client()
archive = rest.get_checkpoint_archive_url_from_tinker_path(sampler_path).result().url
with urllib.request.urlopen(archive) as answer:
    files = tarfile.open(fileobj=io.BytesIO(answer.read())).getnames()
print(json.dumps({
    "from": tinker.__file__,
    "losses": [before, unbroken, resumed],
    "sampled": [one.tokens for one in sampled],
    "scores": sampler.compute_logprobs(types.ModelInput.from_ints(ids)).result(),
    "kept": [one.tinker_path for one in rest.list_user_checkpoints().result().checkpoints],
    "files": files,
}))
"""


@pytest.fixture(scope="module", params=["0.25.0", "0.28.1", "0.30.4", "0.33.1", "0.35.0"])
def old_sdk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with that release alone; what it needs is here already."""
    folder = tmp_path_factory.mktemp("sdk")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    got = subprocess.run([*pip, f"tinker=={request.param}"], capture_output=True, text=True)
    if got.returncode:
        pytest.skip(f"pip could not install tinker {request.param}: {got.stderr.strip()[-300:]}")
    return folder


def test_an_older_sdk_trains_saves_samples_resumes_and_downloads(
    start: Start, old_sdk: Path, tmp_path: Path, model: str
) -> None:
    server = start(tmp_path / "state")
    ids = tokens(12)
    command = [sys.executable, "-c", CLIENT, server.url, KEY, model, json.dumps(ids)]
    environment = {**os.environ, "PYTHONPATH": str(old_sdk)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["from"].startswith(str(old_sdk))
    before, unbroken, resumed = told["losses"]
    assert before[0] > before[1] > unbroken[0] > unbroken[1]
    assert resumed == pytest.approx(unbroken, rel=1e-6)
    first, second = told["sampled"]
    assert first == second
    assert len(first) == 6
    assert told["scores"][0] is None
    assert -sum(told["scores"][1:]) == pytest.approx(unbroken[0], abs=1e-3)
    kinds = {path.rsplit("/", 2)[1] for path in told["kept"]}
    assert kinds == {"weights", "sampler_weights"}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(told["files"])
