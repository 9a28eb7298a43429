"""Capture by eight processes while two people rate and a dashboard is open: no lock error, none lost."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hermes.config.paths import db_path
from hermes.store import Reader
from tests.web.samples import fill
from tests.web.site import WebSite, open_site
from tests.web.test_rate import event, item_of
from tests.web.training import fill_runs

SECONDS = 300
CAPTURE = """
import sys, time
from pathlib import Path
from hermes.store import Writer
from tests.records import record
from tests.web.samples import coding_run
end = time.time() + float(sys.argv[2])
count = 0
with Writer(Path(sys.argv[1])) as writer:
    while time.time() < end:
        record(writer, coding_run(count))
        count += 1
print(count)
"""


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_writers_raters_and_a_dashboard_at_once(tmp_path: Path) -> None:
    fill(tmp_path, 40)
    fill_runs(tmp_path)
    command = [sys.executable, "-c", CAPTURE, str(db_path(tmp_path)), str(SECONDS)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    refused: list[str] = []
    reads_ms: list[float] = []
    saved = [0, 0]
    end_s = time.monotonic() + SECONDS
    with open_site(tmp_path) as site:
        shared = (end_s, saved, refused)
        raters = [threading.Thread(target=_rate, args=(site, number, *shared)) for number in (0, 1)]
        for thread in raters:
            thread.start()
        while time.monotonic() < end_s:
            for path in ("/trajectories", "/runs", "/", "/trajectories?q=pytest"):
                began_s = time.perf_counter()
                reply = site.get(path)
                reads_ms.append((time.perf_counter() - began_s) * 1000)
                if reply.status != 200:
                    refused.append(f"{path}: {reply.status}")
            time.sleep(0.5)
        for thread in raters:
            thread.join()
    captured = [int(writer.communicate()[0]) for writer in writers]
    print(
        {"captured": sum(captured), "rated": saved, "reader p95 ms": statistics.quantiles(reads_ms, n=20)[-1]}
    )
    assert refused == []
    assert all(captured) and all(saved)
    with Reader(db_path(tmp_path)) as reader:
        assert sum(1 for rating in reader.all_ratings() if rating.rater in ("rater-0", "rater-1")) == sum(
            saved
        )


def _rate(site: WebSite, number: int, end_s: float, saved: list[int], refused: list[str]) -> None:
    headers = {
        "cookie": f"hermes_rater=rater-{number}",
        "x-requested-with": "fetch",
        "accept": "application/json",
    }
    while time.monotonic() < end_s:
        reply = site.get("/rate/item", headers)
        if reply.status == 204:
            time.sleep(0.2)
            continue
        form = event(10**6 * number + saved[number], trajectory=item_of(reply.text)["trajectory"])
        confirmed = site.post("/rate", form, headers)
        if confirmed.status != 200:
            refused.append(json.loads(confirmed.text)["error"])
        saved[number] += 1
        time.sleep(0.3)
