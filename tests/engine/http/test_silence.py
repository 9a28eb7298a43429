"""Clients that fall silent while they sample: what they asked for makes way, and can be asked for anew."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest

from hermes.engine.checkpoints.store import CheckpointStore
from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.server.app import build_app
from hermes.engine.server.state import open_state
from hermes.engine.server.tinker.routes import tinker_routes
from hermes.engine.server.tinker.sessions import SAMPLES_TIMEOUT_S, Sessions
from tests.engine.http.conftest import Start
from tests.engine.http.engine_process import KEY, Server, tokens
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
ENDLESS = {"max_tokens": 400, "stop": []}


class Desk(NamedTuple):
    engine: Engine
    sessions: Sessions
    client: httpx.AsyncClient

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.client.post(f"/api/v1/{path}", json=body)

    async def sample(self, sampler: str, number: int, **params: Any) -> str:
        prompt = {"chunks": [{"type": "encoded_text", "tokens": tokens(8)}]}
        asked = {"sampling_session_id": sampler, "seq_id": number, "num_samples": 8, "prompt": prompt}
        answer = await self.post("asample", {**asked, "sampling_params": params})
        request_id: str = answer.json()["request_id"]
        return request_id


@pytest.fixture
async def desk(tiny_folder: Path, tmp_path: Path) -> AsyncIterator[Desk]:
    engine = Engine(EngineOptions(str(tiny_folder), device="cpu", dtype="float32"))
    engine.start()
    store = CheckpointStore(tmp_path)
    state = open_state(engine, store, ("tiny",), 300.0)
    transport = httpx.ASGITransport(build_app(tinker_routes(state)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
        yield Desk(engine, state.sessions, client)
    engine.close()
    store.close()


async def test_what_a_silent_client_wanted_sampled_stops_long_before_its_session_does(desk: Desk) -> None:
    samplers = []
    for _ in range(2):
        session = (await desk.post("create_session", {})).json()["session_id"]
        asked = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}
        samplers.append((await desk.post("create_sampling_session", asked)).json()["sampling_session_id"])
    silent = await desk.sample(samplers[0], 0, **ENDLESS)
    heard = await desk.sample(samplers[1], 0, max_tokens=100, stop=[])
    await asyncio.to_thread(wait_until, lambda: desk.engine.stats().sampling_running == 16)
    session = desk.sessions.find(samplers[0].partition(":")[0])
    session.last_seen_s -= SAMPLES_TIMEOUT_S + 1
    desk.sessions.expire()
    assert (await desk.post("retrieve_future", {"request_id": heard})).status_code == 200
    await asyncio.to_thread(wait_until, lambda: desk.engine.stats().sampling_running == 0)
    assert desk.engine.stats().sampled_tokens < 8 * (400 + 100)
    gone = await desk.post("retrieve_future", {"request_id": silent})
    assert gone.status_code == 410  # which makes the SDK send the sample again
    assert (await desk.post("session_heartbeat", {"session_id": session.id})).status_code == 200
    again = await desk.sample(samplers[0], 1, max_tokens=2, stop=[])
    desk.sessions.expire()
    assert (await desk.post("retrieve_future", {"request_id": again})).status_code == 200


SAMPLING = """
import sys, tinker
from tinker import types as tt
from tests.engine.http.engine_process import (prompt)
url, key, model, calls, length = sys.argv[1:]
client = tinker.ServiceClient(base_url=url, api_key=key)
sampler = client.create_sampling_client(base_model=model)
params = tt.SamplingParams(max_tokens=int(length), stop=[])
input()
waiting = [sampler.sample(prompt(8), 64, params) for _ in range(int(calls))]
print(sum(len(one.result().sequences) for one in waiting))
client.close("success").result()
"""
LONG = 40


@contextmanager
def sampling(server: Server, model: str, calls: int, length: int) -> Iterator[subprocess.Popen[str]]:
    """A client in a process of its own, which samples after a line and does not outlive a test that fails."""
    command = [sys.executable, "-c", SAMPLING, server.url, KEY, model, str(calls), str(length)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_client_makes_way_and_one_that_only_slept_gets_its_answer(
    start: Start, tmp_path: Path, model: str
) -> None:
    server = start(tmp_path)
    with sampling(server, model, LONG, 500) as killed, sampling(server, model, 1, 3) as slept:
        wait_until(lambda: server.metric("sessions") == 2)
        begin(killed)
        wait_until(lambda: server.metric("calls_pending") == LONG)
        begin(slept)  # its one call waits behind the others
        wait_until(lambda: server.metric("calls_pending") == LONG + 1)
        slept.send_signal(signal.SIGSTOP)
        killed.kill()
        wait_until(lambda: server.metric("sampling_running") + server.metric("sampling_waiting") == 0)
        assert server.metric("sampled_tokens_total") < LONG * 64 * 500
        assert server.metric("sessions") == 2
        slept.send_signal(signal.SIGCONT)
        assert slept.communicate()[0] == "64\n"
        assert (slept.returncode, killed.wait()) == (0, -signal.SIGKILL)


def begin(client: subprocess.Popen[str]) -> None:
    assert client.stdin is not None
    client.stdin.write("\n")
    client.stdin.flush()
