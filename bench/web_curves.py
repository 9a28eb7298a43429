"""How quick the curves of long runs are: ten runs overlaid, each of a million steps.

    python bench/web_curves.py [--runs 10] [--steps 1000000] [--store FOLDER] [--repeat 20]

The metrics files are generated once and kept in FOLDER. Three servers, each a process of its own, read them:
one that finds only the metrics files, one that finds the curves that were kept beside them (which a trainer
writes, too), and one that finds both and whose files have grown by a step. Figures are milliseconds to the
last byte of the first request, and of later ones; processor time and peak memory are those of the server's
process.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import multiprocessing
import random
import resource
import statistics
import time
from pathlib import Path
from urllib.parse import urlsplit

from hermes.config.load import load
from hermes.training.monitor.series.saved import CURVES
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


def pages(runs: int) -> dict[str, str]:
    ids = "&".join(f"id=sft-{number}" for number in range(runs))
    names = "&".join(f"name={name}" for name in METRICS)
    return {"curves": f"/runs/curves?{ids}&{names}", "run": "/runs/sft-0", "table": "/runs"}


def measure(home: Path, title: str, runs: int, repeat: int) -> None:
    """In a process of its own, so that nothing has been read and its memory is that of this work."""
    process = multiprocessing.get_context("spawn").Process(target=_measure, args=(home, title, runs, repeat))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"the measurement '{title}' failed")


def _measure(home: Path, title: str, runs: int, repeat: int) -> None:
    config = load(environ={"HERMES_HOME": str(home), "HOME": str(home)})
    with serve_in_background(config, WebOptions(port=0)) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=3600)
        fetch_ms(connection, "/skills")  # the templates and modules that every page needs
        before_bytes, cpu_s = peak_bytes(), time.process_time()
        first_ms, body = fetch_ms(connection, pages(runs)["curves"])
        cpu_s, grown_bytes = time.process_time() - cpu_s, peak_bytes() - before_bytes
        spikes = [max(run["curves"]["train/loss"]["values"]) for run in json.loads(body)["runs"]]
        if min(spikes) < 100:
            raise SystemExit("a spike was lost")
        print(
            f"{title:<24} first {first_ms:7.0f} ms, CPU {cpu_s * 1000:7.0f} ms, "
            f"memory +{grown_bytes / 1e6:.0f} MB, {len(body) / 1000:.0f} kB of curves",
            flush=True,
        )
        for name, path in pages(runs).items() if repeat else ():
            cpu_s = time.process_time()
            times = [fetch_ms(connection, path)[0] for _ in range(repeat)]
            cpu_ms = (time.process_time() - cpu_s) * 1000 / repeat
            p95 = statistics.quantiles(times, n=20)[-1]
            p50 = statistics.median(times)
            print(f"  again: {name:<6} p50 {p50:6.1f}  p95 {p95:6.1f}  CPU {cpu_ms:6.1f} ms")


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def append_step(home: Path, runs: int, step: int) -> None:
    for number in range(runs):
        with (home / "runs" / f"sft-{number}" / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "time_s": 1.7e9 + step, "train/loss": 0.5}) + "\n")


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
    print(f"{arguments.runs} runs of {arguments.steps:,} steps, {len(METRICS)} metrics")
    for number in range(arguments.runs):
        (arguments.store / "runs" / f"sft-{number}" / CURVES).unlink(missing_ok=True)
    measure(arguments.store, "only the metrics files", arguments.runs, arguments.repeat)
    measure(arguments.store, "curves kept beside them", arguments.runs, 0)
    append_step(arguments.store, arguments.runs, arguments.steps + int(time.time()))
    measure(arguments.store, "kept, and another step", arguments.runs, 0)


if __name__ == "__main__":
    main()
