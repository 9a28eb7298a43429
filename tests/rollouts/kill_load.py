"""Environments and trainers that carry on while the trajectory API is killed; the check of what they got."""

from __future__ import annotations

import http.client
import itertools
import random
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.ports import free_port
from tests.rollouts.conftest import Client, command, environment, group, marks
from tests.waiting import wait_until

GONE = (OSError, http.client.HTTPException)


class Receipt(NamedTuple):
    """A batch that a trainer has read to the end."""

    lease_id: int
    redelivered: int
    marks: tuple[int, ...]
    was_acknowledged: bool
    """Whether its acknowledgement was confirmed before this delivery was requested."""


class Load:
    """Environments and trainers that carry on over every crash and write down what they were told."""

    def __init__(self, port: int) -> None:
        self.client = Client(port)
        self.stopping = threading.Event()
        self.numbers = itertools.count(1)
        self.lock = threading.Lock()
        self.posted: dict[int, bool] = {}
        """Each mark that was ever sent → whether it was acknowledged."""
        self.taken = 0
        """How many posts were acknowledged."""
        self.receipts: list[Receipt] = []
        self.acknowledged: set[int] = set()
        """The leases whose acknowledgement was confirmed."""
        self.moments = random.Random(7)
        self.failures: list[BaseException] = []
        """What ended a role before its time: an answer that nobody may be given."""

    def play(self, role: Callable[[], None]) -> None:
        try:
            role()
        except BaseException as error:
            self.failures.append(error)
            raise

    def post_and_forget(self) -> None:
        while not self.stopping.is_set():
            self.post(next(self.numbers))

    def post_until_told(self) -> None:
        while not self.stopping.is_set():
            mark = next(self.numbers)
            while not self.post(mark, Idempotency_Key=f"mark {mark}"):
                if self.stopping.is_set():
                    return
                time.sleep(0.02)

    def post_lists_until_told(self) -> None:
        while not self.stopping.is_set():
            marks = [next(self.numbers) for _ in range(self.moments.randint(2, 20))]
            while not self.post(*marks, Idempotency_Key=f"list from {marks[0]}"):
                if self.stopping.is_set():
                    return
                time.sleep(0.02)

    def post(self, *marks: int, **headers: str) -> bool:
        with self.lock:
            for mark in marks:
                self.posted.setdefault(mark, False)
        groups = [group(mark=mark, images="x" * 3000) for mark in marks]
        try:
            if len(groups) == 1:
                answer = self.client.post("/scored_data", groups[0], **headers)
            else:
                answer = self.client.post("/scored_data_list", groups, **headers)
        except GONE:
            time.sleep(0.01)
            return False
        assert answer["status"] == "received"
        with self.lock:
            self.posted.update(dict.fromkeys(marks, True))
            self.taken += 1
        return True

    def train(self) -> None:
        while not self.stopping.is_set():
            self.take("")

    def train_with_leases(self) -> None:
        while not self.stopping.is_set():
            receipt = self.take("?lease_s=2")
            if receipt is not None and self.moments.random() < 0.9:
                self.acknowledge(receipt)

    def take(self, query: str) -> Receipt | None:
        with self.lock:
            acknowledged = frozenset(self.acknowledged)
        try:
            answer = self.client.get(f"/batch{query}")
        except GONE:
            time.sleep(0.01)
            return None
        if not answer["batch"]:
            time.sleep(0.005)
            return None
        lease_id = answer["lease_id"]
        groups = tuple(marks(answer["batch"]))
        receipt = Receipt(lease_id, answer["redelivered"], groups, lease_id in acknowledged)
        with self.lock:
            self.receipts.append(receipt)
        return receipt

    def acknowledge(self, receipt: Receipt) -> None:
        try:
            self.client.post("/batch/ack", {"lease_id": receipt.lease_id})
        except GONE:
            return
        with self.lock:
            self.acknowledged.add(receipt.lease_id)


def start(port: int, directory: Path | None) -> subprocess.Popen[str]:
    """A server that is up; without a directory it keeps nothing."""
    kept = ("--state-dir", str(directory)) if directory else ()
    process = subprocess.Popen(
        command("--port", str(port), *kept),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline(), "the server did not come up again"
    return process


def kill_often(kills: int, directory: Path) -> tuple[Load, dict[str, Any]]:
    port = free_port()
    load = Load(port)
    process = start(port, directory)
    load.client.register(batch_size=8)
    posters = (load.post_and_forget, load.post_until_told, load.post_lists_until_told)
    roles = (*posters, load.train, load.train_with_leases)
    threads = [threading.Thread(target=load.play, args=(role,)) for role in roles]
    for thread in threads:
        thread.start()
    try:
        for _ in range(kills):
            # Some work in most lives, however slow the machine is; some end before their first.
            enough = load.taken + load.moments.randrange(16)
            while load.taken < enough and not load.failures:
                time.sleep(0.005)
            time.sleep(load.moments.uniform(0.02, 0.25))
            process.kill()
            process.wait()
            process = start(port, directory)
        load.stopping.set()
        for thread in threads:
            thread.join()
        # The leases of the trainer that stopped expire.
        wait_until(lambda: load.client.get("/status")["leases"]["outstanding"] == 0)
        for _ in range(-load.client.get("/status")["queue"]["groups"] % 4):
            load.post(next(load.numbers))
        while load.take(""):
            pass
        status = load.client.get("/status")
    finally:
        load.stopping.set()
        process.kill()
        process.wait()
    return load, status


def check(load: Load, status: dict[str, Any]) -> None:
    assert not load.failures
    served: defaultdict[int, list[Receipt]] = defaultdict(list)
    for receipt in load.receipts:
        assert len(receipt.marks) == 4
        for mark in receipt.marks:
            served[mark].append(receipt)
    assert (status["queue_size"], status["leases"]["lost"]) == (0, 0)
    assert not [mark for mark, told in load.posted.items() if told and mark not in served], "lost"
    assert served.keys() <= load.posted.keys(), "served, but never sent"
    for mark, receipts in served.items():
        assert len({receipt.lease_id for receipt in receipts}) == 1, f"group {mark} is in several batches"
        again = [receipt.redelivered for receipt in receipts]
        assert len(set(again)) == len(again), "served again, and said to be the same delivery"
    # A delivery that was requested before the confirmation may arrive after it.
    later = [receipt for receipt in load.receipts if receipt.was_acknowledged]
    assert not later, "served again after it was acknowledged"
    assert status["current_step"] == len({receipt.lease_id for receipt in load.receipts})
