"""Two hundred raters in eight processes, killed at any moment: no rating is lost, none is there twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from hermes.core import Message
from hermes.ratings import QueueSettings, RatingDesk
from hermes.store import Reader, Writer
from tests import records

PROCESSES, RATERS, ITEMS = 8, 200, 300

# Each process works for 25 raters. It writes an event's id to its log before it sends the event, and the
# word 'acknowledged' after it; a restarted process resends what has no acknowledgement.
WORKER = """
import sys
from pathlib import Path
from hermes.ratings import RatingDesk, RatingDraft
from hermes.errors import UsageError

db, log, raters = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(",")
lines = log.read_text().splitlines() if log.exists() else []
lines = [line.split() for line in lines if line.endswith(";")]
sent = {f[1]: f for f in lines if f[0] == "send"}
acknowledged = {f[1] for f in lines if f[0] == "acknowledged"}
with RatingDesk.open(db) as desk, log.open("a") as file:
    def note(*words):
        print(*words, ";", file=file, flush=True)
    file.write("\\n")
    def send(event, trajectory, rater, item):
        desk.record(RatingDraft(trajectory, "good", rater, id=event, queue="q", item=item))
        note("acknowledged", event)
    for event, (_, _, trajectory, rater, item, _) in sent.items():
        if event not in acknowledged:
            send(event, trajectory, rater, item)
    while True:
        idle = True
        for rater in raters:
            item = desk.next_item("q", rater)
            if item is None:
                continue
            idle = False
            event = RatingDraft(item.trajectory_id, "good", rater).id
            note("send", event, item.trajectory_id, rater, item.item)
            send(event, item.trajectory_id, rater, item.item)
        if idle:
            break
print("done")
"""


def test_killed_raters_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    db = tmp_path / "hermes.db"
    with Writer(db) as writer:
        for number in range(ITEMS):
            records.record(writer, [Message.user("q"), Message.assistant("a")], task_id=str(number))
        RatingDesk(db, writer).create_queue("q", QueueSettings(repeat_share=0.0, lease_s=3600))
    draw = random.Random(11)
    raters = [[f"r{index}" for index in range(RATERS) if index % PROCESSES == p] for p in range(PROCESSES)]
    logs = [tmp_path / f"log{p}" for p in range(PROCESSES)]

    def start(p: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, str(db), str(logs[p]), ",".join(raters[p])]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    running = {p: start(p) for p in range(PROCESSES)}
    kills = 0
    while running:
        for p, process in list(running.items()):
            if process.poll() is None:
                started = logs[p].exists() and "send" in logs[p].read_text()
                if started and kills < 12 and draw.random() < 0.3:
                    os.kill(process.pid, signal.SIGKILL)
                    kills += 1
            elif process.returncode == 0:
                process.communicate()
                del running[p]
            else:
                assert process.returncode == -signal.SIGKILL
                process.communicate()
                running[p] = start(p)
        time.sleep(0.05)
    assert kills > 0
    lines = [line.split() for log in logs for line in log.read_text().splitlines() if line.endswith(";")]
    acknowledged = {fields[1] for fields in lines if fields[0] == "acknowledged"}
    sent = {fields[1] for fields in lines if fields[0] == "send"}
    with Reader(db) as reader:
        events = list(reader.all_ratings(everything=True))
    stored = [event.id for event in events]
    assert len(stored) == len(set(stored))
    assert acknowledged == sent == set(stored)
    assert len({event.item for event in events}) == len(events) == ITEMS  # one rater an item, all items
