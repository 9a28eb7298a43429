"""The trajectory API under load: ours with durability on, ours in memory, the original where there is one.

    python bench/rollouts.py [--original /path/to/run-api] [--queued 2000] [--json]

The original is measured if `atroposlib` is installed beside Hermes, or if --original names its `run-api` in
another environment (an older Hermes has one, too). A group is 8 sequences of 1,000 tokens with masks and
logprobs: `numbers` has nothing else, `agent` has what an agent environment of ours sends beside them. CPU is
that of the server and the processes it starts (user and system), so the load on the machine and the clients'
share do not count. Linux only.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import importlib.util
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

SEQUENCES, TOKENS, BATCH = 8, 1000, 128
JSON_BODY = {"Content-Type": "application/json"}
OURS = [sys.executable, "-m", "hermes", "api"]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def make_group(more: dict[str, Any] | None = None) -> bytes:
    rng = random.Random(0)
    tokens = [[rng.randrange(128_000) for _ in range(TOKENS)] for _ in range(SEQUENCES)]
    return json.dumps(
        {
            "tokens": tokens,
            "masks": [[-100] * (TOKENS // 4) + ids[TOKENS // 4 :] for ids in tokens],
            "scores": [rng.random() for _ in range(SEQUENCES)],
            "inference_logprobs": [[-rng.random() for _ in range(TOKENS)] for _ in range(SEQUENCES)],
            **(more or {}),
        }
    ).encode()


def agent_facts() -> dict[str, Any]:
    """As the built-in `calculator` sends them; tests/rollouts/test_agent_bodies.py looks at the real ones."""
    override = {
        "trajectory_id": "01M7K47X312TD4WFZ3CJSB184E",
        "stop_reason": "completed",
        "tool_calls": 1,
        "tool_errors": 0,
        "success": True,
        "policy_versions": ["step-7"],
    }
    absent = ("ref_logprobs", "group_overrides", "distill_token_ids", "distill_logprobs")
    return {
        "overrides": [override] * SEQUENCES,
        "generation_params": {"temperature": 1.0},
        **dict.fromkeys(absent),
        "env_id": 0,
    }


class Client:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
        fields = {**(JSON_BODY if body else {}), **{k.replace("_", "-"): v for k, v in headers.items()}}
        self._connection.request(method, path, body, fields)
        response = self._connection.getresponse()
        data = response.read()
        assert response.status == 200, data[:300]
        return data


class Server:
    """A server process and its resource usage."""

    def __init__(self, command: list[str], port: int) -> None:
        self.port = port
        started = time.monotonic()
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                Client(port).ask("GET", "/info")
                break
            except OSError:
                if self._process.poll() is not None:
                    raise SystemExit(f"{command[0]} ended with {self._process.returncode}") from None
                time.sleep(0.01)
        self.start_s = time.monotonic() - started

    def cpu_s(self) -> float:
        """Its own, and that of the processes it has started: bodies may be parsed in one."""
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/children")
        children = [pid for task in tasks for pid in task.read_text().split()]
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in (self._process.pid, *children)]
        times = [stat.rpartition(")")[2].split()[11:13] for stat in stats]
        return sum(int(user) + int(system) for user, system in times) * TICK_S

    def rss_mb(self) -> float:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def served(command: list[str], *, durable: bool) -> Iterator[Server]:
    port = free_port()
    state = Path(tempfile.mkdtemp(prefix="rollouts-bench-"))
    more = ["--state-dir", str(state)] if durable else []
    server = Server([*command, "--host", "127.0.0.1", "--port", str(port), *more], port)
    try:
        Client(port).ask("POST", "/register", json.dumps(RUN).encode())
        Client(port).ask("GET", "/batch")
        Client(port).ask("POST", "/register-env", json.dumps(ENV).encode())
        yield server
    finally:
        server.stop()
        shutil.rmtree(state)


ENV = {"max_token_length": 1, "desired_name": "bench", "weight": 1.0, "group_size": SEQUENCES}
RUN: dict[str, Any] = {"batch_size": BATCH, "max_token_len": 2048, "num_steps": 1}
RUN |= dict.fromkeys(("save_checkpoint_interval", "starting_step"), 0)
RUN |= dict.fromkeys(("wandb_group", "wandb_project", "checkpoint_dir"), "bench")


def post_many(port: int, body: bytes, headers: dict[str, str], count: int, times: Any) -> None:
    client = Client(port)
    durations_s = []
    for _ in range(count):
        started = time.monotonic()
        client.ask("POST", "/scored_data", body, **headers)
        durations_s.append(time.monotonic() - started)
    times.put(durations_s)


def measure_posts(server: Server, body: bytes, encoding: str, clients: int, groups: int) -> dict[str, float]:
    headers = {"Content_Encoding": "gzip"} if encoding == "gzip" else {}
    times: Any = multiprocessing.Queue()
    count = groups // clients
    workers = [
        multiprocessing.Process(target=post_many, args=(server.port, body, headers, count, times))
        for _ in range(clients)
    ]
    cpu, started = server.cpu_s(), time.monotonic()
    for worker in workers:
        worker.start()
    durations_s = sorted(second for _ in workers for second in times.get())
    elapsed = time.monotonic() - started
    for worker in workers:
        worker.join()
    return {
        "groups_per_s": len(durations_s) / elapsed,
        "cpu_ms_per_group": 1000 * (server.cpu_s() - cpu) / len(durations_s),
        "p50_ms": 1000 * statistics.median(durations_s),
        "p99_ms": 1000 * durations_s[int(0.99 * (len(durations_s) - 1))],
    }


def probe(port: int, stop: Any, longest: Any) -> None:
    """Requests /status continuously; puts the longest response time into `longest`."""
    client = Client(port)
    worst = 0.0
    while not stop.wait(0.002):
        started = time.monotonic()
        client.ask("GET", "/status")
        worst = max(worst, time.monotonic() - started)
    longest.put(worst)


def _while_probed(server: Server, repeats: int, request: Callable[[], bytes]) -> tuple[list[float], float]:
    """The duration of each request, and the longest response time of /status meanwhile."""
    stop: Any = multiprocessing.Event()
    longest: Any = multiprocessing.Queue()
    prober = multiprocessing.Process(target=probe, args=(server.port, stop, longest))
    prober.start()
    time.sleep(0.5)
    durations_s = []
    for _ in range(repeats):
        started = time.monotonic()
        request()
        durations_s.append(time.monotonic() - started)
    stop.set()
    worst = longest.get()
    prober.join()
    return durations_s, worst


def measure_batches(server: Server, encoding: str, repeats: int) -> dict[str, float]:
    client = Client(server.port)

    def batch() -> bytes:
        data = client.ask("GET", "/batch", Accept_Encoding=encoding)
        assert len(data) > 100_000
        return data

    cpu = server.cpu_s()
    durations_s, worst = _while_probed(server, repeats, batch)
    return {
        "first_ms": 1000 * durations_s[0],
        "median_ms": 1000 * statistics.median(durations_s),
        "cpu_ms_per_batch": 1000 * (server.cpu_s() - cpu) / repeats,
        "status_worst_ms": 1000 * worst,
    }


def measure_lists(command: list[str], *, durable: bool, more: dict[str, Any]) -> dict[str, float]:
    """Lists of 2,000 tiny groups: many objects in few bytes, which block an event loop the longest."""
    sequences = [[1, 2], [3, 4]]
    tiny = {"tokens": sequences, "masks": sequences, "scores": [1.0, 2.0], **more}
    body = json.dumps([tiny] * 2000).encode()
    with served(command, durable=durable) as server:
        post = partial(Client(server.port).ask, "POST", "/scored_data_list", body)
        post()
        durations_s, worst = _while_probed(server, 5, post)
    return {"median_ms": 1000 * statistics.median(durations_s), "status_worst_ms": 1000 * worst}


def measure_polls(server: Server, count: int = 300) -> dict[str, float]:
    client = Client(server.port)
    durations_s = []
    for _ in range(count):
        started = time.monotonic()
        client.ask("GET", "/status-env", b'{"env_id":0}')
        durations_s.append(time.monotonic() - started)
    return {"p50_ms": 1000 * statistics.median(durations_s)}


def measure(command: list[str], *, durable: bool, queued: int) -> dict[str, Any]:
    shapes = {"numbers": make_group(), "agent": make_group(agent_facts())}
    encodings = {"identity": bytes, "gzip": gzip.compress}
    bodies = {
        (shape, encoding): pack(body)
        for shape, body in shapes.items()
        for encoding, pack in encodings.items()
    }
    result: dict[str, Any] = {"body_bytes": {" ".join(name): len(body) for name, body in bodies.items()}}
    with served(command, durable=durable) as server:
        result["start_s"] = server.start_s
        empty_mb = server.rss_mb()
        share = queued // (2 * len(bodies))
        for (shape, encoding), body in bodies.items():
            for clients in (1, 16):
                posts = measure_posts(server, body, encoding, clients, share)
                result[f"POST {shape}, {encoding}, {clients} client{'s' * (clients > 1)}"] = posts
        waiting = json.loads(Client(server.port).ask("GET", "/status"))["queue_size"]
        result["queued_groups"] = waiting
        result["mb_per_queued_group"] = (server.rss_mb() - empty_mb) / waiting
        result["GET /status-env"] = measure_polls(server)
        for encoding in encodings:
            result[f"GET /batch {encoding}"] = measure_batches(server, encoding, 5)
        result["mb_after_batches"] = server.rss_mb()
    with_messages = {"messages": [[{"role": "user", "content": "x"}]] * 2}
    for name, more in {"numbers": {}, "messages": with_messages}.items():
        result[f"POST 2,000 groups, {name}"] = measure_lists(command, durable=durable, more=more)
    return result


def servers(original: str | None) -> dict[str, tuple[list[str], bool]]:
    commands = {"ours, durable": (OURS, True), "ours, in memory": (OURS, False)}
    if original:
        commands["original"] = ([original], False)
    elif importlib.util.find_spec("atroposlib"):
        commands["original"] = ([sys.executable, "-m", "atroposlib.cli.run_api"], False)
    return commands


def flat(result: dict[str, Any]) -> dict[str, float]:
    rows: dict[str, float] = {}
    for name, value in result.items():
        inner = {f"{name}: {key}": number for key, number in value.items()} if isinstance(value, dict) else {}
        rows |= inner or {name: value}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--original", metavar="RUN_API", help="the original's run-api, in another venv")
    parser.add_argument("--queued", type=int, default=2000, help="groups posted before batches are asked for")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.queued < 256:
        parser.error("--queued must be at least 256: ten batches of 16 groups are durations_s from them")
    results = {}
    for name, (command, durable) in servers(options.original).items():
        results[name] = measure(command, durable=durable, queued=options.queued)
    if options.json:
        print(json.dumps(results))
        return
    columns = {name: flat(result) for name, result in results.items()}
    first = next(iter(columns))
    print(
        f"{'':44}"
        + "".join(f"{name:>18}" for name in columns)
        + ("  original / durable" * ("original" in columns))
    )
    for row in columns[first]:
        line = f"{row:44}" + "".join(f"{column[row]:18.3f}" for column in columns.values())
        if "original" in columns and columns[first][row]:
            line += f"{columns['original'][row] / columns[first][row]:20.2f}"
        print(line)


if __name__ == "__main__":
    main()
