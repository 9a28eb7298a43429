"""Measures the gateway beside LiteLLM's proxy: added time to the first byte, CPU of a request, memory.

    python -m venv /tmp/litellm && /tmp/litellm/bin/pip install 'litellm[proxy]'
    python bench/gateway.py --litellm /tmp/litellm/bin/litellm --output gateway.json

200 clients stream at once, each one request after the other, with a body of 100 kB; the provider waits 0.5 s
before its first event and sends 20 more, 0.1 s apart. The three targets (the provider itself, the gateway in
front of it, LiteLLM in front of it) take turns, so that a busy machine is busy for all. The added time is the
difference of equal percentiles; CPU is that of the target's processes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FIRST_S, PAUSE_S, EVENTS = 0.5, 0.1, 20
KEY = "sk-bench-0123456789abcdef"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def chunk(delta: dict[str, Any], stop: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": stop}
    data = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    text = f"data: {json.dumps(data)}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(text), text)


async def provide(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pauses: bool) -> None:
    """One connection of the provider."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", request, re.IGNORECASE)
            await reader.readexactly(int(length[1]) if length else 0)
            await asyncio.sleep(FIRST_S if pauses else 0)
            writer.write(head + chunk({"role": "assistant", "content": "first"}))
            for _ in range(EVENTS):
                if pauses:
                    await asyncio.sleep(PAUSE_S)
                writer.write(chunk({"content": " word"}))
                await writer.drain()
            usage = {"prompt_tokens": 25_000, "completion_tokens": 21, "total_tokens": 25_021}
            last = (
                f"data: {json.dumps({'id': 'x', 'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode()
            )
            writer.write(chunk({}, "stop") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(last), last))
            await writer.drain()
    writer.close()


async def run_provider(pauses: bool) -> None:
    server = await asyncio.start_server(
        lambda reader, writer: provide(reader, writer, pauses), "127.0.0.1", 0, limit=1 << 20, backlog=1024
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


class Stream:
    """One client: a connection on which it asks again and again."""

    def __init__(self, url: str, body: bytes) -> None:
        match = re.fullmatch(r"http://([^:/]+):(\d+)(.*)", url)
        assert match is not None
        self._host, self._port = match[1], int(match[2])
        self._head = (
            f"POST {match[3]}/v1/chat/completions HTTP/1.1\r\nhost: {match[1]}:{match[2]}\r\n"
            f"content-type: application/json\r\nauthorization: Bearer {KEY}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode()
        self._body = body
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> float:
        """Milliseconds to the first byte of the answer's text; the rest is read, too."""
        if self._connection is None:
            self._connection = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        reader, writer = self._connection
        begun_s = time.perf_counter()
        writer.write(self._head + self._body)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(head.decode())
        first = await reader.readuntil(b"first")
        first_ms = (time.perf_counter() - begun_s) * 1000
        end = await reader.readuntil(b"[DONE]")
        await reader.readuntil(b"0\r\n\r\n")
        assert first and end
        return first_ms

    def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()


async def load(url: str, streams: int, requests: int, body_bytes: int, spread_s: float) -> list[float]:
    """The times to the first byte of all requests."""
    times: list[float] = []
    left = requests

    async def client(index: int) -> None:
        nonlocal left
        text = random.Random(index).randbytes(body_bytes // 2).hex()
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}
        stream = Stream(url, json.dumps(body).encode())
        await asyncio.sleep(spread_s * index / streams)
        while left > 0:
            left -= 1
            times.append(await stream.ask())
        stream.close()

    await asyncio.gather(*(client(index) for index in range(streams)))
    return times


def processes(pid: int) -> list[int]:
    """The process and those below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(below for child in children for below in processes(int(child)))]


def cpu_s(pid: int) -> float:
    fields = [
        Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split() for member in processes(pid)
    ]
    return sum(int(field[11]) + int(field[12]) for field in fields) / TICKS


def memory_mb(pid: int) -> float:
    pages = [int(Path(f"/proc/{member}/statm").read_text().split()[1]) for member in processes(pid)]
    return sum(pages) * PAGE_BYTES / 1e6


@contextlib.contextmanager
def process(command: list[str], ready: str, **variables: str) -> Iterator[tuple[int, str]]:
    """The process's id and the address in the first line that has one."""
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **variables}
    )
    assert child.stdout is not None
    try:
        for line in child.stdout:
            if match := re.search(ready, line):
                break
        else:
            raise RuntimeError(f"{command[0]} ended")
        # Read to the end: a process whose pipe is full waits for its reader, and every request with it.
        threading.Thread(target=child.stdout.read, daemon=True).start()
        yield child.pid, match[0]
    finally:
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(60)
        child.kill()
        child.wait()


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def figures(times: list[float], cpu: float) -> dict[str, float]:
    return {
        "requests": len(times),
        "first_byte_ms_median": round(statistics.median(times), 2),
        "first_byte_ms_p99": round(percentile(times, 0.99), 2),
        "cpu_ms_a_request": round(cpu * 1000 / len(times), 2),
    }


@contextlib.contextmanager
def litellm(program: str, provider: str, folder: Path) -> Iterator[tuple[int, str]]:
    port = 18_431
    parameters = {"model": "openai/m", "api_base": f"{provider}/v1", "api_key": "x"}
    config = folder / "litellm.yaml"
    config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": parameters}]}))
    command = [
        program,
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
    ]
    ready = r"Application startup complete"
    variables = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY}
    with process(command, ready, **variables) as (pid, _):
        yield pid, f"http://127.0.0.1:{port}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--requests", type=int, default=600, help="of a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--memory-requests", type=int, default=10_000)
    parser.add_argument("--litellm", help="its program, of an environment of its own")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--provider", choices=("slow", "fast"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.provider:
        asyncio.run(run_provider(options.provider == "slow"))
        return
    result: dict[str, Any] = {"streams": options.streams, "body_kb": 100}
    own = [sys.executable, __file__, "--provider"]
    address = r"http://[\d.]+:\d+"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, slow = stack.enter_context(process([*own, "slow"], address))
        pid, fast = stack.enter_context(process([*own, "fast"], address))
        serve = [sys.executable, "-m", "hermes", "record", "serve", "--port", "0", "--base-url"]
        home = {"HERMES_HOME": str(folder / "home")}
        targets = {"direct": (pid, slow)}
        targets["gateway"] = stack.enter_context(
            process([*serve, f"{slow}/v1"], r"http://[\d.]+:\d+", **home)
        )
        if options.litellm:
            targets["litellm"] = stack.enter_context(litellm(options.litellm, slow, folder))
        times: dict[str, list[float]] = {name: [] for name in targets}
        cpu = dict.fromkeys(targets, 0.0)
        for _, url in targets.values():  # imports and connections
            asyncio.run(load(url, 20, 20, 1000, 0.1))
        for _ in range(options.turns):
            for name, (pid, url) in targets.items():
                before = cpu_s(pid)
                times[name] += asyncio.run(
                    load(url, options.streams, options.requests, 100_000, FIRST_S + EVENTS * PAUSE_S)
                )
                cpu[name] += cpu_s(pid) - before
        result["targets"] = {name: figures(times[name], cpu[name]) for name in targets}
        base = result["targets"].pop("direct")
        for entry in result["targets"].values():
            for name in ("first_byte_ms_median", "first_byte_ms_p99"):
                entry[f"added_{name}"] = round(entry[name] - base[name], 2)
        result["direct"] = base
        home = {"HERMES_HOME": str(folder / "memory")}
        pid, url = stack.enter_context(process([*serve, f"{fast}/v1"], address, **home))
        sizes = []
        for _ in range(10):
            asyncio.run(load(url, 20, options.memory_requests // 10, 100_000, 0.0))
            sizes.append(round(memory_mb(pid)))
        result["memory_mb_by_tenth"] = sizes
    text = json.dumps(result, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
