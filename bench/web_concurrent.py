"""How long readers wait while others write: eight processes capture, two people rate, a dashboard is open.

    python bench/web_concurrent.py [--seconds 300] [--pace-ms 50] [--writers 8]

`hermes web` runs in a process of its own over a new store. Every capture process records steps, waits until
each is on disk and then for `--pace-ms`, as it would for its model; 0 is as fast as it can. The raters decide
three times a second; the dashboard loads the list, a search, the runs and home in turn and keeps the stream
of the runs open. Printed: the time to the last byte of a page, and what the machine did meanwhile, as other
work on the same cores is part of the figure. Exit status 1: a request failed, or a rating was lost.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from hermes.config.paths import db_path
from hermes.core import (
    Header,
    Message,
    ModelCall,
    Outcome,
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
from hermes.store import Reader, Writer

PAGES = ("/trajectories", "/runs", "/", "/trajectories?q=parser")
SCRIPT = {"x-requested-with": "fetch", "accept": "application/json"}
DECISION_S = 0.3
LOOK_S = 0.5
RATERS = 2


@dataclass
class Log:
    """What the clients saw. Appended to from several threads."""

    reads_ms: dict[str, list[float]] = field(default_factory=lambda: {path: [] for path in PAGES})
    items_ms: list[float] = field(default_factory=list)
    saves_ms: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    events: int = 0


def capture(path: Path, seconds: float, pace_s: float) -> int:
    """Records trajectories until the time is up; gives the number of steps that are on disk."""
    end_s, number, steps = time.monotonic() + seconds, 0, 0
    with Writer(path) as writer:
        while time.monotonic() < end_s:
            number += 1
            header = Header(
                new_id(),
                Source.BATCH,
                "provider/model",
                time.time_ns() // 1_000_000,
                run_id=f"capture-{os.getpid()}",
                task_id=f"task-{number // 4}",
                sample_index=number % 4,
            )
            writer.begin(header)
            messages = conversation(number)
            for index, message in enumerate(messages):
                context = messages[:index] if message.role == "assistant" else None
                writer.append(header.id, make_step(index, message), context=context).result()
                steps += 1
                time.sleep(pace_s)
            writer.finish(header.id, Outcome(StopReason.COMPLETED)).result()
    return steps


def conversation(number: int) -> list[Message]:
    call = ToolCall(f"c{number}", "terminal", json.dumps({"command": f"grep parser file{number}.py"}))
    return [
        Message.system("You are a careful engineer. Use the tools."),
        Message.user(f"Task {number // 4}: explain the parser"),
        Message.assistant("I look.", reasoning=f"About the parser, {number}.", tool_calls=(call,)),
        Message.tool(call, "\n".join(f"file{number}.py:{line}: parser" for line in range(8))),
        Message.assistant(f"Result {number}: the parser reads tokens."),
    ]


def make_step(index: int, message: Message) -> Step:
    now_ms = time.time_ns() // 1_000_000
    if message.role == "assistant":
        usage = Usage(500, 0, 0, 60, 0)
        call = ModelCall("provider/model", "x", Sampling(), "stop", usage, 800.0, 0.001)
        return Step(index, StepKind.MODEL, message, now_ms, call)
    if message.role == "tool":
        result = ToolResult(message.tool_call_id or "", "terminal", True, 12.0)
        return Step(index, StepKind.TOOL, message, now_ms, None, result)
    return Step(index, StepKind.INPUT, message, now_ms)


class Client:
    """One browser: a connection that is kept."""

    def __init__(self, url: str, log: Log, rater: str = "") -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
        self._headers = {"cookie": f"hermes_rater={rater}"} if rater else {}
        self._log = log

    def fetch(
        self, path: str, form: dict[str, str] | None = None, headers: dict[str, str] | None = None
    ) -> tuple[float, http.client.HTTPResponse, str]:
        """Milliseconds to the last byte, the response and its text."""
        sent = {**self._headers, **(headers or {})}
        body = None
        if form is not None:
            sent["content-type"] = "application/x-www-form-urlencoded"
            body = urlencode(form)
        began_s = time.perf_counter()
        self._connection.request("GET" if body is None else "POST", path, body, sent)
        response = self._connection.getresponse()
        text = response.read().decode()
        if response.status not in (200, 204):
            self._log.failures.append(f"{path}: {response.status} {text[:200]}")
        return (time.perf_counter() - began_s) * 1000, response, text


def rate(url: str, log: Log, rater: str, end_s: float) -> None:
    client = Client(url, log, rater)
    while time.monotonic() < end_s:
        item_ms, response, text = client.fetch("/rate/item", headers=SCRIPT)
        if response.status == 200:
            log.items_ms.append(item_ms)
            trajectory = text.partition('data-trajectory="')[2].partition('"')[0]
            form = {"mode": "thumb", "decision": "good", "trajectory": trajectory, "id": str(uuid.uuid4())}
            log.saves_ms.append(client.fetch("/rate", form, SCRIPT)[0])
        time.sleep(DECISION_S)


def watch(url: str, log: Log, end_s: float) -> None:
    client = Client(url, log)
    while time.monotonic() < end_s:
        for path in PAGES:
            log.reads_ms[path].append(client.fetch(path)[0])
        time.sleep(LOOK_S)


def listen(url: str, log: Log, end_s: float) -> None:
    """The stream of the page Runs, open all the time."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    connection.request("GET", "/runs/events")
    response = connection.getresponse()
    while time.monotonic() < end_s and (line := response.readline()):
        log.events += line.startswith(b"data:")


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def busy_s() -> float:
    """Seconds of processor time that all programs of the machine have used."""
    line = Path("/proc/stat").read_text().split("\n")[0]
    user, nice, system, _, _, irq, soft, *_ = map(int, line.split()[1:])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def measure(home: Path, seconds: float, pace_ms: float, writers: int) -> bool:
    Writer(db_path(home)).close()
    command = [sys.executable, "-m", "hermes", "web", "--no-open", "--port", "0"]
    server = subprocess.Popen(
        command, env={**os.environ, "HERMES_HOME": str(home)}, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
    capturing = [
        subprocess.Popen(
            [
                *(sys.executable, __file__, "--capture", str(home)),
                *("--seconds", str(seconds), "--pace-ms", str(pace_ms)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(writers)
    ]
    time.sleep(3)  # the processes have started, and something is there to be rated
    log, end_s, busy_before_s, began_s = Log(), time.monotonic() + seconds - 3, busy_s(), time.monotonic()
    threads = [threading.Thread(target=rate, args=(url, log, f"r{n}", end_s)) for n in range(RATERS)]
    threads.append(threading.Thread(target=watch, args=(url, log, end_s)))
    threading.Thread(target=listen, args=(url, log, end_s), daemon=True).start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed_s = time.monotonic() - began_s
    machine_s, server_s = busy_s() - busy_before_s, cpu_s(server.pid)
    steps = sum(int(process.communicate()[0]) for process in capturing)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of those that have ended: the capture processes
    writers_s = used.ru_utime + used.ru_stime
    server.send_signal(signal.SIGTERM)
    server.wait()
    with Reader(db_path(home)) as reader:
        saved = sum(1 for rating in reader.all_ratings() if rating.rater.startswith("r"))
    cores = os.cpu_count() or 1
    print(f"{elapsed_s:.0f} s, {writers} processes captured {steps / seconds:.0f} durable steps a second")
    print(f"processor: server {server_s:.0f} s, capture {writers_s:.0f} s, all programs of the machine")
    print(f"  {machine_s:.0f} s of {elapsed_s * cores:.0f} s on {cores} cores; load {os.getloadavg()[0]:.1f}")
    everything = [value for values in log.reads_ms.values() for value in values]
    for name, values in {**log.reads_ms, "all pages": everything}.items():
        print_row(name, values)
    print_row("next item to rate", log.items_ms)
    print_row("save a rating", log.saves_ms)
    print(f"failed requests: {len(log.failures)}; ratings sent {len(log.saves_ms)}, in the store {saved}")
    for failure in log.failures[:5]:
        print(f"  {failure}")
    return not log.failures and saved == len(log.saves_ms)


def print_row(name: str, values: list[float]) -> None:
    cuts = statistics.quantiles(values, n=100) if len(values) > 1 else [0.0] * 99
    figures = f"p50 {cuts[49]:>7.1f}  p95 {cuts[94]:>7.1f}  p99 {cuts[98]:>7.1f} ms"
    print(f"{name:<26} n {len(values):>6}  {figures}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--pace-ms", type=float, default=50)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--capture", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.capture is not None:
        print(capture(db_path(arguments.capture), arguments.seconds, arguments.pace_ms / 1000))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        ok = measure(Path(folder) / "home", arguments.seconds, arguments.pace_ms, arguments.writers)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
