"""The bundled model behind the public SDK: it speaks, learns, and is found under its own name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tinker
from tinker import types as tt

from hermes.models.local.bundled import model_folder
from tests.engine.http.engine_process import Server, datum, launch

pytestmark = pytest.mark.slow
NAME = "hermes/smollm2"


@pytest.fixture(scope="module")
def bundled(bundled_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = ("--max-length", "512")
    state_dir = tmp_path_factory.mktemp("bundled")
    server = launch(NAME, state_dir, *limits, HERMES_HOME=str(bundled_home), HF_HUB_OFFLINE="1")
    yield server
    server.kill()


def test_it_answers_a_question_and_learns_another_answer(
    bundled: Server, bundled_home: Path, connect: Callable[..., tinker.ServiceClient]
) -> None:
    client = connect(bundled)
    training = client.create_lora_training_client(NAME, rank=8, seed=0)
    assert training.get_info().model_data.tokenizer_id == str(model_folder(bundled_home))
    tokenizer = training.get_tokenizer()
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=True)["input_ids"]
    prompt = tt.ModelInput.from_ints(ids)
    greedy = tt.SamplingParams(max_tokens=12, temperature=0.0)
    base = client.create_sampling_client(base_model=NAME)
    before = base.sample(prompt, 1, greedy).result().sequences[0]
    assert "Paris" in tokenizer.decode(before.tokens)
    answer = tokenizer.encode("Atlantis.<|im_end|>", add_special_tokens=False)
    weights = [0.0] * (len(ids) - 1) + [1.0] * len(answer)
    lesson = [datum([*ids, *answer], weights=weights)]
    losses = []
    for _ in range(8):
        output = training.forward_backward(lesson, "cross_entropy")
        training.optim_step(tt.AdamParams(learning_rate=2e-3)).result()
        losses.append(output.result().metrics["loss:sum"])
    assert losses[-1] < losses[0] / 4
    learned = training.save_weights_and_get_sampling_client()
    after = learned.sample(prompt, 1, greedy).result().sequences[0]
    assert (tokenizer.decode(after.tokens), after.stop_reason) == ("Atlantis.<|im_end|>", "stop")
    assert base.sample(prompt, 1, greedy).result().sequences[0].tokens == before.tokens


def test_its_folder_is_a_name_too_and_gives_the_sampler_its_tokenizer(
    bundled: Server, bundled_home: Path, connect: Callable[..., tinker.ServiceClient]
) -> None:
    folder = str(model_folder(bundled_home))
    client = connect(bundled)
    assert [one.model_name for one in client.get_server_capabilities().supported_models] == [NAME, folder]
    assert client.create_sampling_client(base_model=folder).get_tokenizer().eos_token_id == 2
