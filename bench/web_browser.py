"""How quick the web app is in a real browser: a long transcript while it scrolls, a rating from key to paint.

    python bench/web_browser.py [--store FOLDER] [--seconds 10] [--keys 60] [--chromium /usr/bin/chromium]

The transcript has 5,000 steps and 20 MB. The goals: content within 300 ms, at least 50 frames a second, a
find band of its own, and 50 ms from a key to the paint of the next item (95th percentile). Chromium draws
without a GPU here, so that frames cost the processor more than on a desk. The store is generated once, in
FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.config.load import load
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
from hermes.store import Writer, sqlite
from hermes.store.rows import Rows
from hermes.web.server import WebOptions, serve_in_background

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

STEPS = 5000
BYTES = 20_000_000
TO_RATE = 400
MODES = {"thumb": "y", "score": "4", "pair": "ArrowLeft", "step": "+"}
WORDS = ("parser", "index", "cache", "tensor", "graph", "socket", "thread", "branch", "commit", "query")
FRAMES = """() => { const times = []; window.frames_ms = times;
  const next = (now) => { times.push(now); requestAnimationFrame(next); }; requestAnimationFrame(next);
  window.long_ms = []; new PerformanceObserver((list) => list.getEntries().forEach((entry) =>
    window.long_ms.push(entry.duration))).observe({ type: "longtask" }); }"""
PAINTS = """(shown) => { window.painted_ms = []; let pressed = 0;
  const painted = () => { const began = pressed; requestAnimationFrame(() => {
    const channel = new MessageChannel(); channel.port2.postMessage(0);
    channel.port1.onmessage = () => window.painted_ms.push(performance.now() - began); }); };
  addEventListener("keydown", (event) => { pressed = event.timeStamp; }, true);
  document.addEventListener(shown, painted); }"""
"""From a key to the frame after the event `shown`: a message that is sent in a frame arrives when the frame
has been drawn."""


def generate(home: Path) -> str:
    """The id of the long trajectory; the others are for the rating queue."""
    home.mkdir(parents=True, exist_ok=True)
    path = db_path(home)
    Writer(path).close()
    connection = sqlite.connect_writer(path)
    rows, chance = Rows(connection, lambda text: text), random.Random(1)
    connection.execute("BEGIN")
    for number in range(TO_RATE):
        insert(rows, chance, f"task-{number // 4}", number % 4, turns=4, result_chars=2000)
    long_id = insert(rows, chance, "long", 0, turns=STEPS // 2 - 1, result_chars=2 * BYTES // STEPS - 500)
    connection.execute("COMMIT")
    connection.close()
    return long_id


def insert(rows: Rows, chance: random.Random, task: str, sample: int, turns: int, result_chars: int) -> str:
    at_ms = 1_760_000_000_000
    header = Header(new_id(), Source.BATCH, "provider/model", at_ms, task_id=task, sample_index=sample)
    rows.insert_trajectory(header)
    messages = [Message.user(f"Repair the parser, {task}")]
    for turn in range(turns):
        command = json.dumps({"command": f"grep -rn {chance.choice(WORDS)} src/module_{turn}"})
        call = ToolCall(f"c{turn}", "terminal", command)
        text = " ".join(chance.choices(WORDS, k=40))
        messages.append(Message.assistant(f"Turn {turn}: {text}", reasoning=text, tool_calls=(call,)))
        messages.append(Message.tool(call, output(chance, turn, result_chars)))
    messages.append(Message.assistant(f"Done after {turns} turns."))
    for index, message in enumerate(messages):
        rows.insert_step(
            header.id, step(index, message, at_ms), [] if message.role == "assistant" else None, ()
        )
    rows.insert_outcome(header.id, Outcome(StopReason.COMPLETED), at_ms + 1)
    return header.id


def output(chance: random.Random, turn: int, chars: int) -> str:
    lines, size = [], 0
    while size < chars:
        lines.append(
            f"\x1b[32msrc/module_{turn}.py\x1b[0m:{len(lines)}: {' '.join(chance.choices(WORDS, k=8))}"
        )
        size += len(lines[-1]) + 1
    return "\n".join(lines)


def step(index: int, message: Message, at_ms: int) -> Step:
    if message.role == "assistant":
        call = ModelCall("provider/model", "x", Sampling(), "stop", Usage(500, 0, 0, 60, 0), 800.0, 0.001)
        return Step(index, StepKind.MODEL, message, at_ms, call)
    if message.role == "tool":
        result = ToolResult(message.tool_call_id or "", "terminal", True, 12.0)
        return Step(index, StepKind.TOOL, message, at_ms, None, result)
    return Step(index, StepKind.INPUT, message, at_ms)


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def measure_opening(page: Page, url: str, repeat: int = 40) -> None:
    """The first opening, with nothing in the caches of server and browser, is not part of the percentiles."""
    first: list[float] = []
    finding: list[float] = []
    for _ in range(repeat):
        page.goto(url)
        page.wait_for_selector("article.card")
        timing = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        first.append(timing)
        page.locator("#find").fill("module_2400")
        began_s = time.perf_counter()
        page.keyboard.press("Enter")
        page.wait_for_selector(".matches .chip")
        finding.append((time.perf_counter() - began_s) * 1000)
    for name, (cold, *times) in {"content": first, "matches of find": finding}.items():
        print(
            f"transcript: {name} after {statistics.median(times):.0f} ms "
            f"(p95 {p95(times):.0f}, the first time {cold:.0f})"
        )


def measure_scrolling(page: Page, session: CDPSession, url: str, seconds: float, speed: int) -> None:
    """Scrolls as a finger does, at `speed` pixels a second; further steps are fetched on the way."""
    page.goto(url)
    page.wait_for_selector("article.card")
    page.evaluate(FRAMES)
    session.send("Performance.enable")
    busy_s = -task_s(session)
    session.send(
        "Input.synthesizeScrollGesture",
        {
            "x": 700,
            "y": 500,
            "yDistance": -int(speed * seconds),
            "speed": speed,
            "gestureSourceType": "mouse",
        },
    )
    busy_s += task_s(session)
    report_frames(page, f"scrolling at {speed:,} px/s", busy_s)


def report_frames(page: Page, title: str, busy_s: float) -> None:
    times: list[float] = page.evaluate("window.frames_ms")
    long_ms: list[float] = page.evaluate("window.long_ms")
    gaps = [later - before for before, later in pairwise(times)]
    length_s = (times[-1] - times[0]) / 1000
    cards = page.locator("article.card").count()
    print(
        f"{title}: {len(gaps) / length_s:.1f} frames/s over {length_s:.1f} s, {cards:,} cards; "
        f"frame p50 {statistics.median(gaps):.1f} ms, p95 {p95(gaps):.1f}, longest {max(gaps):.0f}; "
        f"{len(long_ms)} tasks over 50 ms (longest {max(long_ms, default=0):.0f}); "
        f"main thread busy {busy_s / length_s:.0%}"
    )


def task_s(session: CDPSession) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def measure_walking(page: Page, url: str, keys: int = 60) -> None:
    """From step to step by `j`, with every step of the trajectory on the page."""
    page.goto(url)
    page.wait_for_selector("article.card")
    load_all(page)
    times = press(page, "keyup", "j", keys)
    cards = page.locator("article.card").count()
    print(f"key j with {cards:,} cards: paint after {statistics.median(times):.0f} ms (p95 {p95(times):.0f})")


def press(page: Page, shown: str, key: str, keys: int) -> list[float]:
    """Milliseconds from each key to the paint of what it shows."""
    page.evaluate(PAINTS, shown)
    for number in range(keys):
        page.keyboard.press(key)
        page.wait_for_function("(count) => window.painted_ms.length >= count", arg=number + 1, timeout=10_000)
        page.wait_for_timeout(150)
    times: list[float] = page.evaluate("window.painted_ms")
    return times


def load_all(page: Page) -> None:
    while page.locator(".more a").count():
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.wait_for_timeout(30)
    page.evaluate("scrollTo(0, 0)")


def measure_rating(page: Page, url: str, mode: str, keys: int) -> None:
    page.goto(f"{url}/rate?mode={mode}")
    page.wait_for_selector(".item")
    page.wait_for_timeout(1000)
    times = press(page, "hermes:shown", MODES[mode], keys)
    print(
        f"rate, {mode}: from key to paint {statistics.median(times):.0f} ms "
        f"(p95 {p95(times):.0f}, longest {max(times):.0f}), {len(times)} keys"
    )


def measure(home: Path, long_id: str, arguments: argparse.Namespace) -> None:
    from playwright.sync_api import sync_playwright

    config = load(environ={"HERMES_HOME": str(home), "HOME": str(home)})
    options: dict[str, Any] = {
        "executable_path": arguments.chromium,
        "args": ["--no-sandbox", "--disable-gpu"],
    }
    with serve_in_background(config, WebOptions(port=0)) as url, sync_playwright() as driver:
        browser = driver.chromium.launch(**options)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        session = page.context.new_cdp_session(page)
        print(f"{browser.version} on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        long_url = f"{url}/trajectories/{long_id}"
        measure_opening(page, long_url)
        for speed in (1000, 4000):
            measure_scrolling(page, session, long_url, arguments.seconds, speed)
        measure_walking(page, long_url)
        for mode in MODES:
            measure_rating(page, url, mode, arguments.keys)
        print(f"load {os.getloadavg()[0]:.1f}")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", type=Path, default=Path("/tmp/hermes-bench-browser"))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--keys", type=int, default=60)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    arguments = parser.parse_args()
    noted = arguments.store / "long-trajectory"
    if not noted.exists():
        noted.parent.mkdir(parents=True, exist_ok=True)
        noted.write_text(generate(arguments.store))
    measure(arguments.store, noted.read_text(), arguments)


if __name__ == "__main__":
    main()
