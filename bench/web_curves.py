"""How quick the curves of long runs are: ten runs overlaid, each of a million steps.

    python bench/web_curves.py [--runs 10] [--steps 1000000] [--store FOLDER] [--repeat 20]

The metrics files are generated once and kept in FOLDER. The first request reads the files; the others find
them read, as does a page that is open while a run grows. Figures are milliseconds to the last byte.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import statistics
import time
from pathlib import Path
from urllib.parse import urlsplit

from hermes.config.load import load
from hermes.web.server import WebOptions, serve_in_background

METRICS = ("reward/mean", "train/loss", "health/entropy")


def generate(home: Path, number: int, steps: int) -> None:
    folder = home / "runs" / f"sft-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(number)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            noise = chance.random()
            spike = 100.0 if step == steps // 3 else 0.0
            values = (1 - math.exp(-step / steps) + 0.1 * noise, noise / step + spike, 1 / (1 + step))
            row = {"step": step, "time_s": 1.7e9 + step, **dict(zip(METRICS, values, strict=True))}
            file.write(json.dumps(row) + "\n")


def fetch_ms(connection: http.client.HTTPConnection, path: str) -> tuple[float, bytes]:
    began_s = time.perf_counter()
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise SystemExit(f"{path} answers {response.status}")
    return (time.perf_counter() - began_s) * 1000, body


def measure(home: Path, runs: int, steps: int, repeat: int) -> None:
    config = load(environ={"HERMES_HOME": str(home), "HOME": str(home)})
    ids = "&".join(f"id=sft-{number}" for number in range(runs))
    names = "&".join(f"name={name}" for name in METRICS)
    pages = {"curves": f"/runs/curves?{ids}&{names}", "run": "/runs/sft-0", "table": "/runs"}
    with serve_in_background(config, WebOptions(port=0)) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=3600)
        cpu_s = time.process_time()
        first_ms, body = fetch_ms(connection, pages["curves"])
        cpu_s = time.process_time() - cpu_s
        spikes = [max(run["curves"]["train/loss"]["values"]) for run in json.loads(body)["runs"]]
        if min(spikes) < 100:
            raise SystemExit("a spike was lost")
        print(f"{runs} runs of {steps:,} steps, {len(METRICS)} metrics, {len(body) / 1000:.0f} kB of curves")
        print(f"first read {first_ms / 1000:.1f} s, of the processor {cpu_s:.1f} s")
        for name, path in pages.items():
            cpu_s = time.process_time()
            times = [fetch_ms(connection, path)[0] for _ in range(repeat)]
            cpu_ms = (time.process_time() - cpu_s) * 1000 / repeat
            p95 = statistics.quantiles(times, n=20)[-1]
            print(f"{name:<8} p50 {statistics.median(times):7.1f}  p95 {p95:7.1f}  CPU {cpu_ms:7.1f} ms")
        path, step = home / "runs" / "sft-0" / "metrics.jsonl", json.loads(body)["runs"][0]["last"] + 1
        with path.open("a") as file:
            file.write(json.dumps({"step": step, "time_s": 1.7e9 + step, "train/loss": 0.5}) + "\n")
        print(f"after another step: {fetch_ms(connection, pages['curves'])[0]:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--store", type=Path, default=Path("/tmp/hermes-bench-curves"))
    parser.add_argument("--repeat", type=int, default=20)
    arguments = parser.parse_args()
    for number in range(arguments.runs):
        if not (arguments.store / "runs" / f"sft-{number}" / "metrics.jsonl").exists():
            generate(arguments.store, number, arguments.steps)
    measure(arguments.store, arguments.runs, arguments.steps, arguments.repeat)


if __name__ == "__main__":
    main()
