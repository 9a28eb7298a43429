"""The server layer over real HTTP: slots, splits, retries, health, several answers, engines' wires."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hermes.core import explicit_sampling
from hermes.envs.failures import EnvironmentRunError
from hermes.envs.phase import phase
from hermes.envs.servers.base import AsyncSemWithAdaptiveWeight
from hermes.envs.servers.config import APIServerConfig, ReasoningConfig
from hermes.envs.servers.engines import VLLMServer
from hermes.envs.servers.manager import ServerManager, server_configs
from hermes.errors import ConfigError
from tests.fakes.provider import FakeProvider, held, status, text
from tests.waiting import await_until

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def manager(*base_urls: str, **settings: Any) -> ServerManager:
    return ServerManager([APIServerConfig(base_url=url, api_key="x", **settings) for url in base_urls])


async def test_evaluation_has_slots_of_its_own_even_if_nobody_says_so() -> None:
    answering = threading.Event()
    with FakeProvider(lambda request: held(answering, text("hi"))) as provider:
        servers = manager(provider.base_url, num_max_requests_at_once=1, num_requests_for_eval=3)
        asked = [asyncio.create_task(servers.chat_completion(**ASK)) for _ in range(2)]
        await await_until(lambda: provider.in_flight == 1)
        with phase("eval"):
            asked += [asyncio.create_task(servers.chat_completion(**ASK)) for _ in range(3)]
        await await_until(lambda: provider.in_flight == 4)
        answering.set()
        await asyncio.gather(*asked)
        assert provider.max_in_flight == 4
        server = servers.servers[0]
        assert (len(server.request_timings), len(server.eval_request_timings)) == (2, 3)
        metrics = await server.wandb_metrics({}, "server_0")
        assert {"server/server_0_request_time_avg", "server/server_0_eval_request_time_99p"} <= set(metrics)
        await servers.close()


async def test_many_answers_are_split_and_a_server_that_ignores_n_is_asked_again() -> None:
    with FakeProvider(lambda request: text("hi")) as provider:
        servers = manager(provider.base_url)
        answer = await servers.chat_completion(**ASK, n=11)
        assert [choice.index for choice in answer.choices] == list(range(11))
        asked = len(provider.requests)
        single = await servers.chat_completion(**ASK, n=1)
        assert len(single.choices) == 1 and len(provider.requests) == asked + 1
        await servers.close()


async def test_a_busy_server_is_asked_again_and_a_refusal_is_not() -> None:
    with FakeProvider([status(429, retry_after=0.01), text("hi"), status(400)]) as provider:
        servers = manager(provider.base_url)
        answer = await servers.chat_completion(**ASK)
        assert answer.choices[0].message.content == "hi"
        with pytest.raises(Exception, match="scripted failure"):
            await servers.chat_completion(**ASK)
        assert len(provider.requests) == 3
        await servers.close()


async def test_requests_go_to_the_server_that_is_up() -> None:
    with FakeProvider(lambda request: text("hi")) as provider:
        servers = manager("http://127.0.0.1:9/v1", provider.base_url)
        await servers.wait_until_ready(5)
        assert [server.server_healthy for server in servers.servers] == [False, True]
        await asyncio.gather(*(servers.chat_completion(**ASK) for _ in range(4)))
        await servers.close()


async def test_servers_that_are_all_down_are_named_and_unchecked_ones_are_not_asked() -> None:
    with pytest.raises(EnvironmentRunError, match=r"no model server responds at http://127\.0\.0\.1:9/v1"):
        await manager("http://127.0.0.1:9/v1").wait_until_ready(0.1)
    await manager("http://127.0.0.1:9/v1", health_check=False).wait_until_ready(0.1)


async def test_the_model_of_this_process_is_no_server_of_a_plain_environment() -> None:
    with pytest.raises(ConfigError, match="local is for environments of HermesAgentBaseEnv"):
        await manager("local").chat_completion(messages=[{"role": "user", "content": "hi"}])


async def test_slots_follow_the_weight_and_never_run_dry() -> None:
    slots = AsyncSemWithAdaptiveWeight(8)
    slots.update_weight(0.5)
    for _ in range(4):
        await slots.acquire()
    fifth = asyncio.create_task(slots.acquire())
    await asyncio.sleep(0)
    assert not fifth.done()
    slots.update_weight(1.0)
    await fifth
    waiting = [asyncio.create_task(slots.acquire()) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[3].cancel()
    slots.release()
    await asyncio.sleep(0)
    assert waiting[4].done() and slots.in_use == 8, "a place that was given up goes to the next in line"
    slots.update_weight(0.0)
    assert slots.limit == 1
    for task in waiting:
        task.cancel()


def test_reasoning_is_asked_for_as_each_provider_wants_it() -> None:
    assert ReasoningConfig().build_extra_body() is None
    assert ReasoningConfig(effort="high").build_extra_body("http://here/v1") == {
        "reasoning": {"enabled": True, "effort": "high"}
    }
    assert ReasoningConfig(max_tokens=2048).build_extra_body() == {
        "reasoning": {"enabled": True, "max_tokens": 2048}
    }
    assert ReasoningConfig(enabled=True).build_extra_body("https://api.openai.com/v1") == {
        "reasoning_effort": "medium"
    }
    with pytest.raises(ValueError, match="reasoning_effort is 'extreme'"):
        ReasoningConfig(effort="extreme")


async def test_reasoning_reaches_the_wire_unless_a_call_does_without() -> None:
    with FakeProvider(lambda request: text("hi")) as provider:
        servers = ServerManager(
            [APIServerConfig(base_url=provider.base_url, api_key="x")],
            reasoning_config=ReasoningConfig(effort="low"),
        )
        await servers.chat_completion(**ASK)
        await servers.chat_completion(**ASK, skip_reasoning=True)
        await servers.close()
    first, second = [request.json for request in provider.requests]
    assert first["reasoning"] == {"enabled": True, "effort": "low"} and "reasoning" not in second


Answer = Callable[[str, dict[str, Any]], dict[str, Any] | None]


@contextmanager
def vllm_server(answer: Answer) -> Iterator[tuple[VLLMServer, list[tuple[str, dict[str, Any]]]]]:
    """A client of a server that answers so, None being 404; and the requests that the server got."""
    requests: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            requests.append((self.path, body))
            response = answer(self.path, body)
            payload = json.dumps(response or {"detail": "Not Found"}).encode()
            self.send_response(404 if response is None else 200)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        base_url = f"http://127.0.0.1:{http.server_port}/v1"
        yield (
            VLLMServer(APIServerConfig(base_url=base_url, server_type="vllm", model_name="policy")),
            requests,
        )
        http.shutdown()


async def test_the_generate_of_atropos_s_vllm_server_gives_ids_logprobs_and_prompt_logprobs() -> None:
    def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
        completion = {"logprobs": [[[{"7": -0.5}], [{"8": -0.25}]]], "finish_reasons": ["length"]}
        scores = {"prompt_logprobs": [[None, {"5": -1.0, "6": -2.0}]]}
        return {**completion, **scores} if "prompt_logprobs" in body else completion

    with vllm_server(answer) as (server, requests):
        sampled = await server.tokens_and_logprobs_completion(input_ids=[1, 2], max_tokens=2, n=1)
        scored = await server.get_logprobs(input_ids=[4, 5], top_k=2)
        await server.close()
    assert sampled == ([1, 2], [[7, 8]], [[-0.5, -0.25]], ["length"])
    sampling = explicit_sampling({"max_tokens": 2, "n": 1})
    assert requests[0] == (
        "/generate",
        {"prompt": {"prompt_token_ids": [1, 2]}, "logprobs": 0, **sampling},
    )
    assert scored == {
        "prompt_tokens": [4, 5],
        "prompt_topk_token_ids": [[], [5, 6]],
        "prompt_topk_logprobs": [[], [-1.0, -2.0]],
    }


async def test_a_vllm_server_without_generate_is_asked_for_completions() -> None:
    """The answers have the form of vLLM 0.32's; tests/rl/test_real_fleet.py runs the same against vLLM."""

    def answer(path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if path != "/v1/completions":
            return None
        choice: dict[str, Any] = {
            "index": 0,
            "text": "ab",
            "token_ids": [7, 8],
            "logprobs": {"token_logprobs": [-0.5, -0.25], "tokens": ["a", "b"]},
            "finish_reason": "length",
            "prompt_logprobs": None,
        }
        if "prompt_logprobs" in body:
            scores = {"9": (-6.0, 30), "5": (-1.0, 1), "6": (-2.0, 2)}
            position = {token: {"logprob": value, "rank": rank} for token, (value, rank) in scores.items()}
            choice |= {"token_ids": None, "logprobs": None, "prompt_logprobs": [None, position]}
        return {"choices": [choice]}

    with vllm_server(answer) as (server, requests):
        sampled = await server.tokens_and_logprobs_completion(input_ids=[1, 2], max_tokens=2)
        scores = await server.get_logprobs(input_ids=[4, 9], top_k=2)
        await server.close()
    assert sampled == ([1, 2], [[7, 8]], [[-0.5, -0.25]], ["length"])
    assert scores["prompt_topk_token_ids"] == [[], [5, 6]]
    assert scores["prompt_topk_logprobs"] == [[], [-1.0, -2.0]]
    assert [path for path, _ in requests] == ["/generate", "/v1/completions", "/v1/completions"]
    body = requests[1][1]
    assert (body["model"], body["prompt"], body["return_token_ids"]) == ("policy", [1, 2], True)
    assert body["top_k"] == -1


def test_servers_of_a_slurm_job_are_on_its_inference_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nprintf 'n1\\nn2\\n'\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("NUM_TRAINING_NODES", "1")
    monkeypatch.setenv("INFER_TP", "4")
    found = server_configs([APIServerConfig(model_name="m")], slurm=True)
    assert [one.base_url for one in found] == ["http://n2:9000/v1", "http://n2:9001/v1"]
