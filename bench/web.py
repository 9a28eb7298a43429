"""How quick the web app is on a large store: first byte of every page, list, search, next item to rate.

    python bench/web.py [--trajectories 100000] [--store FOLDER] [--repeat 20]

The store is generated once and kept in FOLDER. Pages are fetched over HTTP from the server of this process;
the figures are the 50th and 95th percentile of the time to the first byte, in milliseconds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

from hermes.config.load import load
from hermes.config.paths import db_path
from hermes.core import (
    Header,
    Message,
    ModelCall,
    Outcome,
    Rating,
    RatingKind,
    Reward,
    Sampling,
    Source,
    Step,
    StepKind,
    StopReason,
    ToolCall,
    ToolResult,
    Usage,
    new_id,
)
from hermes.store import Writer, sqlite
from hermes.store.rows import Rows
from hermes.web.responses import STATIC
from hermes.web.server import WebOptions, serve_in_background

WORDS = [
    "parser",
    "index",
    "cache",
    "tensor",
    "graph",
    "socket",
    "thread",
    "branch",
    "commit",
    "query",
    "token",
    "vector",
    "shader",
    "packet",
    "kernel",
]
LIMITS_MS = {"list": 150, "search": 150, "next item": 50}
"""What issue and documentation promise; every other page: 100 ms."""


def generate(home: Path, count: int) -> None:
    """One transaction: what is measured is reading."""
    home.mkdir(parents=True, exist_ok=True)
    path = db_path(home)
    Writer(path).close()
    connection = sqlite.connect_writer(path)
    chance = random.Random(1)
    rows = Rows(connection, lambda text: text)
    began_ms = 1_760_000_000_000
    connection.execute("BEGIN")
    for number in range(count):
        insert(rows, chance, number, began_ms + number * 1000)
        if number % 5000 == 4999:
            connection.execute("COMMIT")
            connection.execute("BEGIN")
            rows.forget()
            print(f"  {number + 1:,} trajectories", flush=True)
    connection.execute("COMMIT")
    connection.close()


def insert(rows: Rows, chance: random.Random, number: int, at_ms: int) -> None:
    header = Header(
        new_id(),
        Source.BATCH,
        f"provider/model-{number % 5}",
        at_ms,
        run_id=f"run-{number // 5000:03d}",
        task_id=f"task-{number // 4}",
        sample_index=number % 4,
        metadata={"split": "train"},
    )
    words = " ".join(chance.choices(WORDS, k=12))
    call = ToolCall(
        f"c{number}", "terminal", json.dumps({"command": f"grep {chance.choice(WORDS)} file{number}.py"})
    )
    messages = [
        Message.system("You are a careful engineer. Use the tools."),
        Message.user(f"Task {number // 4}: explain {words}"),
        Message.assistant("I look.", reasoning=f"About {words}.", tool_calls=(call,)),
        Message.tool(call, "\n".join(f"file{number}.py:{line}: {chance.choice(WORDS)}" for line in range(8))),
        Message.assistant(f"Result {number}: {' '.join(chance.choices(WORDS, k=40))}"),
    ]
    rows.insert_trajectory(header)
    usage = Usage(500, 0, 0, 60, 0)
    for index, message in enumerate(messages):
        kind = {"assistant": StepKind.MODEL, "tool": StepKind.TOOL}.get(message.role.value, StepKind.INPUT)
        made = (
            ModelCall(header.model, "x", Sampling(), "stop", usage, 800.0, 0.001)
            if kind is StepKind.MODEL
            else None
        )
        result = ToolResult(call.id, "terminal", True, 12.0) if kind is StepKind.TOOL else None
        step = Step(index, kind, message, at_ms + index, made, result)
        rows.insert_step(header.id, step, messages[:index] if made else None, ())
    rows.insert_outcome(header.id, Outcome(StopReason.COMPLETED), at_ms + 100)
    if number % 2 == 0:
        rows.insert_reward(Reward(header.id, chance.random(), "tests", {}, at_ms))
    if number % 50 == 0:
        rows.insert_rating(
            Rating(new_id(), header.id, RatingKind.SCORE, float(chance.randint(1, 5)), "ana", at_ms)
        )


def fetch_ms(connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> tuple[float, int]:
    began_s = time.perf_counter()
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    first_s = time.perf_counter()
    size = len(response.read())
    if response.status not in (200, 204):
        raise SystemExit(f"{path} answers {response.status}")
    return (first_s - began_s) * 1000, size


def paths_of(home: Path, url: str) -> dict[str, str]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("GET", "/trajectories/last/id")
    newest = connection.getresponse().read().decode()
    queries = {
        "list": "",
        "list, rare reward": "reward>0.9999",
        "list, condition": "outcome=completed turns>=2 model~model-3",
        "list, nothing matches": "turns>500",
        "list, low rating": "rating<=1",
        "list, metadata of none": "metadata.split=test",
        "list, messages of none": "messages>500",
        "search": "shader kernel",
        "search, every message": "engineer",
        "search, one": '"Result 4711"',
        "search, with condition": "shader reward>0.9",
    }
    pages = {name: f"/trajectories?q={quote(query)}" for name, query in queries.items()}
    pages["list, deep page"] = "/trajectories?before=50000"
    pages |= {f"next item, {mode}": f"/rate/item?mode={mode}" for mode in ("thumb", "score", "pair", "step")}
    pages |= {
        "transcript": f"/trajectories/{newest}",
        "home": "/",
        "rate": "/rate",
        "runs": "/runs",
        "batches": "/batches",
        "batch": "/batches/run-003",
        "environments": "/environments",
        "skills": "/skills",
        "datasets": "/datasets",
        "policies": "/policies",
    }
    return pages


def measure(home: Path, repeat: int) -> None:
    config = load(environ={"HERMES_HOME": str(home), "HOME": str(home)})
    with serve_in_background(config, WebOptions(port=0)) as url:
        pages = paths_of(home, url)
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        print(f"{'page':<26}{'p50 ms':>9}{'p95 ms':>9}{'kB':>8}  limit")
        for name, path in pages.items():
            headers = {"x-requested-with": "fetch"} if name.startswith("next item") else {}
            fetch_ms(connection, path, headers)
            times, sizes = zip(*(fetch_ms(connection, path, headers) for _ in range(repeat)), strict=True)
            p95 = statistics.quantiles(times, n=20)[-1]
            limit = next((value for key, value in LIMITS_MS.items() if name.startswith(key)), 100)
            mark = "" if p95 <= limit else "  OVER"
            figures = f"{statistics.median(times):>9.1f}{p95:>9.1f}{max(sizes) / 1000:>8.0f}"
            print(f"{name:<26}{figures}  {limit}{mark}", flush=True)
        page = fetch_ms(connection, "/trajectories", {})[1]
    loaded = ["app.css", "app.js", "icon.svg", "vendor/htmx-2.0.11.min.js"]
    first = page + sum((STATIC / name).stat().st_size for name in loaded)
    print(f"first load of the list: {first / 1000:.0f} kB, uncompressed")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--store", type=Path, default=Path("/tmp/hermes-bench-web"))
    parser.add_argument("--repeat", type=int, default=20)
    arguments = parser.parse_args()
    if not db_path(arguments.store).exists():
        print(f"generating {arguments.trajectories:,} trajectories in {arguments.store}")
        generate(arguments.store, arguments.trajectories)
    measure(arguments.store, arguments.repeat)


if __name__ == "__main__":
    main()
