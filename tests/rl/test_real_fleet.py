"""`hermes engine fleet` in front of vLLM and SGLang themselves, which the servers of tests/fakes imitate."""

from __future__ import annotations

import json
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
import tinker

from hermes.envs.servers.config import APIServerConfig
from hermes.envs.servers.engines import SERVER_TYPES
from tests.engine.http.engine_process import KEY
from tests.engine.tiny import tiny_model
from tests.rl.books import check_books
from tests.rl.fleet_parts import PROMPT, engine_logprobs, fleet, run_at, train
from tests.rl.parts import Parts
from tests.rl.real_server import MAX_RANK, RealServer
from tests.rl.world import how_it_ended, kill_runs, make_home, start_run, tiny_tokenizer
from tests.training.world import metrics
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With heads of a size that vLLM's kernels take, and defaults that would spoil a sample."""
    folder = tmp_path_factory.mktemp("real") / "model"
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    tiny_model("llama", vocab_size=tiny_tokenizer(folder), **sizes).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"top_k": 1, "temperature": 0.2}))
    return folder


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def server(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealServer]:
    flags = ("--logprobs-mode", "processed_logprobs") if request.param == "vllm" else ()
    server = RealServer(request.param, model, tmp_path_factory.mktemp("server"), *flags)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def test_it_samples_the_newest_adapter_with_the_logprobs_of_the_engine(
    model: Path, server: RealServer, tmp_path: Path
) -> None:
    with fleet(model, tmp_path, [server.url], server.dialect) as group:
        assert group.sample()[0].version == str(model)
        service = tinker.ServiceClient(base_url=group.trainer.url, api_key=KEY)
        client = service.create_lora_training_client(str(model), rank=4, seed=1)
        versions = set()
        for step in (1, 2, 3):
            path = train(client, step)
            group.wait_for(path)
            samples = group.sample(n=4)
            for sample in samples:
                assert sample.logprobs == pytest.approx(engine_logprobs(service, path, sample.ids), abs=1e-3)
                assert sample.version.startswith(f"{path}@")
                versions.add(sample.version)
            assert len({tuple(sample.ids) for sample in samples}) > 1, (
                "generation_config's top_k 1 is not used"
            )
        assert len(versions) == 3
        wait_until(lambda: len([name for name in server.adapters() if "step-" in name]) == 2)
        message = {"role": "user", "content": "Say letters."}
        body = {"model": "policy", "messages": [message], "max_tokens": 12, "logprobs": True}
        chats = [group.post("/v1/chat/completions", body) for _ in range(3)]
        assert all(chat["metadata"]["weight_version"].startswith(path) for chat in chats)
        assert len({chat["choices"][0]["message"]["content"] for chat in chats}) > 1
        service.close("success").result(timeout=30)


def test_a_server_that_is_killed_under_load_and_started_again_gets_the_adapter_again(
    model: Path, server: RealServer, tmp_path: Path
) -> None:
    with fleet(model, tmp_path, [server.url], server.dialect) as group:
        service = tinker.ServiceClient(base_url=group.trainer.url, api_key=KEY)
        path = train(service.create_lora_training_client(str(model), rank=4, seed=2), 1)
        group.wait_for(path)
        versions: list[str] = []
        refusals: list[int] = []
        done = threading.Event()

        def sample() -> None:
            while not done.is_set():
                try:
                    versions.append(group.sample(max_tokens=64)[0].version)
                except urllib.error.HTTPError as error:
                    refusals.append(error.code)
                    done.wait(0.2)

        threads = [threading.Thread(target=sample) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(versions) > 8)
        server.kill()
        wait_until(lambda: refusals)
        server.start()
        group.wait_for(path)
        answered = len(versions)
        wait_until(lambda: len(versions) > answered + 8)
        done.set()
        for thread in threads:
            thread.join()
        assert set(refusals) == {503} and all(version.startswith(path) for version in versions)
        service.close("success").result(timeout=30)


def test_a_run_whose_environment_samples_there_trains_every_batch_once_and_measures_the_mismatch(
    model: Path, server: RealServer, tmp_path: Path
) -> None:
    with fleet(model, tmp_path, [server.url], server.dialect) as group:
        rows = run_at(group, model, tmp_path, 6, "--env.agent_temperature", "0.8")
    assert all(row["health/staleness_max"] <= 2 for row in rows), "the version of every answer is known"
    for row in rows:  # at temperature 0.8, under the weights that the fleet named
        assert row["proof/gap_p90"] < 1e-3 and row["proof/unchecked"] == 0, row


def test_a_run_of_the_supervisor_samples_there(model: Path, server: RealServer, tmp_path: Path) -> None:
    home = make_home(
        tmp_path / "home",
        model,
        total_steps=4,
        sampling_servers=[server.url],
        sampling_server_type=server.dialect,
    )
    run = start_run(home)
    try:
        assert how_it_ended(run) == "completed: None", run.log_path("fleet").read_text()
    finally:
        kill_runs(home)
    check_books(run, 4)
    assert any("step-" in name for name in server.adapters())
    assert all(row["proof/gap_p90"] < 1e-3 for row in metrics(run.folder))


def test_an_adapter_that_no_server_can_hold_ends_the_fleet_with_the_reason(
    model: Path, server: RealServer, tmp_path: Path
) -> None:
    with fleet(model, tmp_path, [server.url], server.dialect) as group:
        service = tinker.ServiceClient(base_url=group.trainer.url, api_key=KEY)
        train(service.create_lora_training_client(str(model), rank=2 * MAX_RANK, seed=3), 1)
        wait_until(lambda: "cannot load" in group.process.output)
        assert group.sample()[0].version == str(model), "the version before is sampled"
        assert group.process.wait() == 2
        assert "error: no server can load tinker://" in group.process.output
        assert f"rank {2 * MAX_RANK} is" in group.process.output
        service.close("success").result(timeout=30)


def test_logprobs_that_sglang_does_not_truncate_are_refused(
    model: Path, server: RealServer, tmp_path: Path
) -> None:
    with fleet(model, tmp_path, [server.url], server.dialect) as group:
        group.sample(temperature=0.5)
        if server.dialect == "vllm":  # with --logprobs-mode processed_logprobs
            group.sample(temperature=0.5, top_p=0.9)
            return
        refusals: list[dict[str, float]] = [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1, "temperature": 0.5}]
        for sampling in refusals:
            with pytest.raises(urllib.error.HTTPError) as refused:
                group.sample(**sampling)
            assert refused.value.code == 400
            assert "SGLang's logprobs leave them out" in refused.value.read().decode()


def test_logprobs_of_a_vllm_in_its_default_mode_are_refused_except_at_temperature_1(
    model: Path, tmp_path: Path
) -> None:
    server = RealServer("vllm", model, tmp_path)
    try:
        server.start()
        with fleet(model, tmp_path, [server.url], "vllm") as group:
            group.complete()
            group.complete(temperature=0)
            group.complete(temperature=0.5, logprobs=None)
            refusals: list[dict[str, float]] = [
                {"temperature": 0.5},
                {"top_p": 0.9},
                {"top_k": 5, "logprobs": 0},
            ]
            for fields in refusals:
                with pytest.raises(urllib.error.HTTPError) as refused:
                    group.complete(**fields)
                assert refused.value.code == 400
                assert "--logprobs-mode processed_logprobs" in refused.value.read().decode()
    finally:
        server.kill()


def test_a_server_in_another_dtype_than_the_engine_is_a_warning_with_this_cause(
    model: Path, tmp_path: Path
) -> None:
    """With SGLang: vLLM's kernels for bf16 need a processor that has it."""
    server = RealServer("sglang", model, tmp_path, "--dtype", "bfloat16")
    try:
        server.start()
        with fleet(model, tmp_path, [server.url], "sglang") as group:
            parts = Parts(tmp_path / "home", group.trainer, model, steps=6)
            try:
                trainer = parts.trainer()
                parts.env(
                    6, settings=("--openai.base_url", f"{group.url}/v1", "--openai.server_type", "vllm")
                )
                assert trainer.wait(600) == 0, trainer.output
                assert "other precision: the logprobs" in trainer.output
                assert "--dtype float32" in trainer.output
            finally:
                parts.close()
    finally:
        server.kill()


async def test_an_environment_samples_and_scores_there_without_a_fleet(
    model: Path, server: RealServer
) -> None:
    config = APIServerConfig.model_validate(
        {"base_url": f"{server.url}/v1", "server_type": server.dialect, "model_name": str(model)}
    )
    client = SERVER_TYPES[server.dialect](config)
    prompt, tokens, logprobs, reasons = await client.tokens_and_logprobs_completion(
        input_ids=PROMPT, max_tokens=6, n=3
    )
    assert prompt == PROMPT and reasons == ["length"] * 3
    assert [len(ids) for ids in tokens] == [len(values) for values in logprobs] == [6, 6, 6]
    assert len({tuple(ids) for ids in tokens}) > 1, "sampled at temperature 1"
    _, (greedy,), (likeliest,), _ = await client.tokens_and_logprobs_completion(
        input_ids=PROMPT, max_tokens=6, temperature=0
    )
    scores = await client.get_logprobs(input_ids=[*PROMPT, *greedy], top_k=3)
    await client.close()
    ids, values = scores["prompt_topk_token_ids"][len(PROMPT) :], scores["prompt_topk_logprobs"]
    assert all(len(position) == 3 for position in ids), "the prompt's own token is not one more"
    assert [position[0] for position in ids] == greedy
    assert [position[0] for position in values[len(PROMPT) :]] == pytest.approx(likeliest, abs=1e-3)
