"""What the journal acknowledged is there again, whatever happened to the process or the end of its file."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from hermes.core.json import JSONObject
from hermes.errors import StoreError
from hermes.rollouts.core.snapshot import describe
from hermes.rollouts.core.state import ApiState
from hermes.rollouts.intake import IntakeLimits
from hermes.rollouts.journal.journal import SEGMENT_BYTES, FileJournal, recover
from hermes.rollouts.journal.segment import list_segments
from hermes.rollouts.parsing.fast_path import IncomingGroup
from hermes.rollouts.schema import EnvRegistration, Registration
from hermes.rollouts.service import BatchDelivery, TrajectoryService
from tests.rollouts.conftest import ENV, RUN, Client, Launch, group, marks
from tests.waiting import wait_until

T = TypeVar("T")


def incoming(mark: int, size: int = 2, length_bytes: int = 100, env_id: int | None = None) -> IncomingGroup:
    return IncomingGroup(env_id, size, json.dumps({"mark": mark}).encode().ljust(length_bytes))


async def opened(
    directory: Path, segment_bytes: int = SEGMENT_BYTES
) -> tuple[FileJournal, TrajectoryService]:
    journal = FileJournal(directory, 0.0, segment_bytes)
    return journal, TrajectoryService(journal, IntakeLimits())


async def read(batch: BatchDelivery | dict[str, object]) -> list[int]:
    assert isinstance(batch, BatchDelivery)
    return [json.loads(reader())["mark"] for reader in batch.readers]


def gone(path: Path) -> None:
    """Waits until the file is deleted."""
    wait_until(lambda: not path.exists())


async def a_run(
    directory: Path, note: Callable[[TrajectoryService], None] = lambda service: None
) -> JSONObject:
    """A little of everything, noting each acknowledged change; returns what the state was at the end."""
    journal, service = await opened(directory)

    async def do(change: Awaitable[T]) -> T:
        result = await change
        note(service)
        return result

    await do(service.register(Registration(**{**RUN, "starting_step": 5})))
    await do(service.next_batch(None))
    await do(service.register_env(EnvRegistration(**{**ENV, "group_size": 3})))
    await do(service.register_env(EnvRegistration(**ENV)))
    await do(service.disconnect_env(1))
    for mark in range(14):
        await do(service.intake.post([incoming(mark)], many=False, key=None))
    await do(service.intake.post([incoming(90, 2, env_id=0)], many=False, key=None))
    await do(service.intake.post([incoming(91, 9)], many=False, key=None))
    first = await do(service.next_batch(None))
    assert isinstance(first, BatchDelivery)
    await do(service.acknowledge(first.lease.id))
    timed = await do(service.next_batch(60.0))
    assert isinstance(timed, BatchDelivery)
    await do(service.renew([timed.lease.id], 3600.0))
    await do(service.next_batch(None))
    said = describe(service.state)
    await journal.close()
    return said


async def test_a_restart_restores_registration_step_queue_buffers_and_leases(tmp_path: Path) -> None:
    said = await a_run(tmp_path)
    journal, service = await opened(tmp_path)
    assert describe(service.state) == said
    assert service.state.step == 8
    assert service.state.envs[1].disconnected
    assert [lease.waiting for lease in service.state.leases.values()] == [False, True]
    assert await read(await service.next_batch(None)) == [8, 9, 10, 11], "bound to a connection that is gone"
    assert await service.latest_example() == incoming(91, 9).payload
    await journal.close()


async def test_a_system_without_fdatasync_keeps_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fdatasync")
    said = await a_run(tmp_path)
    journal, service = await opened(tmp_path)
    assert describe(service.state) == said
    await journal.close()


async def test_a_key_is_remembered_over_a_restart(tmp_path: Path) -> None:
    for duplicate in (False, True):
        journal, service = await opened(tmp_path)
        answer = await service.intake.post([incoming(1), incoming(2)], many=True, key="a post")
        assert answer.get("duplicate", False) is duplicate
        assert answer["groups_processed"] == 2
        assert service.state.queue.groups == 2
        await journal.close()


async def test_a_file_cut_anywhere_gives_the_state_of_the_last_change_that_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "00000001.log"
    states: list[tuple[int, JSONObject]] = [(0, describe(ApiState()))]
    await a_run(tmp_path, lambda service: states.append((path.stat().st_size, describe(service.state))))
    whole = path.read_bytes()
    ends = [size for size, _ in states[1:]]
    for length in sorted({*range(0, len(whole), 17), *ends, *(size - 1 for size in ends)}):
        path.write_bytes(whole[:length])
        recovered = recover(tmp_path, 0.0)
        expected = [said for size, said in states if size <= length][-1]
        assert describe(recovered.state) == expected
        assert recovered.locations.keys() == {group.id for group in recovered.state.groups()}


async def test_a_post_that_was_cut_and_is_sent_again_is_stored_once(tmp_path: Path) -> None:
    """Its key and each of its groups are separate records: a crash may leave any number of them."""
    journal, service = await opened(tmp_path)
    await service.register(Registration(**RUN))
    path = list_segments(tmp_path)[-1]
    before = path.stat().st_size
    await service.intake.post([incoming(mark) for mark in range(3)], many=True, key="a list")
    await service.intake.post([incoming(7)], many=False, key="one group")
    await journal.close()
    whole = path.read_bytes()
    for length in range(before, len(whole) + 1, 7):
        for segment in list_segments(tmp_path):
            segment.unlink()
        path.write_bytes(whole[:length])
        journal, service = await opened(tmp_path)
        assert service.state.queue.groups in (0, 3, 4), "a part of a post"
        await service.intake.post([incoming(mark) for mark in range(3)], many=True, key="a list")
        await service.intake.post([incoming(7)], many=False, key="one group")
        readers = journal.readers(group.id for group in service.state.queue)
        assert sorted(json.loads(reader())["mark"] for reader in readers) == [0, 1, 2, 7]
        await journal.close()


async def test_a_cut_list_without_a_key_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    journal, service = await opened(tmp_path)
    path = list_segments(tmp_path)[-1]
    before = path.stat().st_size
    await service.intake.post([incoming(mark) for mark in range(3)], many=True, key=None)
    await journal.close()
    whole = path.read_bytes()
    for length in range(before, len(whole), 11):
        path.write_bytes(whole[:length])
        assert recover(tmp_path, 0.0).state.kept_groups == 0
    path.write_bytes(whole)
    assert recover(tmp_path, 0.0).state.kept_groups == 3


async def test_damage_before_the_end_is_an_error_and_not_a_smaller_queue(tmp_path: Path) -> None:
    await a_run(tmp_path)
    journal, _ = await opened(tmp_path)
    await journal.close()
    first, _ = list_segments(tmp_path)
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        FileJournal(tmp_path, 0.0)


async def test_a_file_of_another_version_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "00000001.log"
    path.write_bytes(b"hermes rollouts 9\nand more that this version does not know")
    with pytest.raises(StoreError, match="this version"):
        FileJournal(tmp_path, 0.0)
    assert path.stat().st_size > 50


async def test_old_segments_go_when_their_groups_are_served_and_stragglers_are_carried_along(
    tmp_path: Path,
) -> None:
    journal, service = await opened(tmp_path, segment_bytes=20_000)
    await service.register(Registration(**RUN))
    await service.intake.post([incoming(7777, 9)], many=False, key=None)
    served: list[int] = []
    for mark in range(400):
        await service.intake.post([incoming(mark, length_bytes=1000)], many=False, key=None)
        batch = await service.next_batch(None)
        if isinstance(batch, BatchDelivery):
            served += await read(batch)
            service.settle_delivery(batch.lease, arrived=True)
    assert served == list(range(400))
    await journal.close()
    assert sum(path.stat().st_size for path in list_segments(tmp_path)) < 100_000
    journal, service = await opened(tmp_path)
    (straggler,) = service.state.queue
    assert (straggler.size, service.state.step) == (9, 100)
    assert json.loads(journal.readers([straggler.id])[0]())["mark"] == 7777
    await journal.close()


async def test_ids_of_groups_that_are_long_gone_are_not_given_again(tmp_path: Path) -> None:
    for expected in (1, 5, 9):
        journal, service = await opened(tmp_path)
        if expected == 1:
            await service.register(Registration(**RUN))
        for mark in range(4):
            await service.intake.post([incoming(mark)], many=False, key=None)
        batch = await service.next_batch(None)
        assert isinstance(batch, BatchDelivery)
        assert [group.id for group in batch.lease.groups] == list(range(expected, expected + 4))
        await service.acknowledge(batch.lease.id)
        await journal.close()
    assert len(list_segments(tmp_path)) == 1


async def test_a_batch_can_be_read_while_its_segment_is_emptied(tmp_path: Path) -> None:
    await a_run(tmp_path)
    journal, service = await opened(tmp_path)
    batch = await service.next_batch(None)
    assert isinstance(batch, BatchDelivery)
    await asyncio.to_thread(gone, tmp_path / "00000001.log")
    assert await read(batch) == [8, 9, 10, 11]
    await journal.close()
    journal, service = await opened(tmp_path)
    assert await read(await service.next_batch(None)) == [8, 9, 10, 11]
    await journal.close()


async def test_two_servers_cannot_share_a_directory(tmp_path: Path) -> None:
    journal, _ = await opened(tmp_path)
    with pytest.raises(StoreError, match="another server"):
        FileJournal(tmp_path, 0.0)
    await journal.close()
    await (await opened(tmp_path))[0].close()


async def test_changes_made_at_once_share_a_flush_and_keep_their_order(tmp_path: Path) -> None:
    journal, service = await opened(tmp_path)
    await asyncio.gather(*(service.intake.post([incoming(m)], many=False, key=None) for m in range(200)))
    assert [group.id for group in service.state.queue] == list(range(1, 201))
    assert journal.figures()["log_flushes_total"] < 100
    await journal.close()
    journal, service = await opened(tmp_path)
    assert [group.id for group in service.state.queue] == list(range(1, 201))
    await journal.close()


async def test_changes_behind_a_long_list_wait_for_it_as_they_do_in_the_log(tmp_path: Path) -> None:
    journal, service = await opened(tmp_path)
    many = [incoming(mark) for mark in range(1000)]
    first = asyncio.create_task(service.intake.post(many, many=True, key=None))
    await asyncio.sleep(0)
    second = asyncio.create_task(service.intake.post(many[:3], many=True, key="last"))
    await asyncio.sleep(0)
    await asyncio.gather(first, service.reset(), second)
    before = describe(service.state)
    await journal.close()
    journal, service = await opened(tmp_path)
    assert describe(service.state) == before
    await journal.close()


async def test_whoever_gave_up_waiting_does_not_hold_up_the_others(tmp_path: Path) -> None:
    journal, service = await opened(tmp_path)
    impatient = asyncio.create_task(service.intake.post([incoming(1)], many=False, key=None))
    await asyncio.sleep(0)
    impatient.cancel()
    await service.intake.post([incoming(2)], many=False, key=None)
    assert service.state.queue.groups == 2
    await journal.close()


async def test_two_posts_with_one_key_at_once_are_taken_once(tmp_path: Path) -> None:
    journal, service = await opened(tmp_path)
    posts = [service.intake.post([incoming(1)], many=False, key="same") for _ in range(5)]
    answers = await asyncio.gather(*posts)
    assert sum("duplicate" not in answer for answer in answers) == 1
    assert service.state.queue.groups == 1
    await journal.close()


FULL_DISK = """
import asyncio, json, resource, sys
from pathlib import Path
from hermes.errors import StoreError
from hermes.rollouts.intake import IntakeLimits
from hermes.rollouts.journal.journal import SEGMENT_BYTES, FileJournal
from hermes.rollouts.parsing.fast_path import IncomingGroup
from hermes.rollouts.service import TrajectoryService

async def main():
    journal = FileJournal(Path(sys.argv[1]), 0.0)
    service = TrajectoryService(journal, IntakeLimits())
    acknowledged = []
    for mark in range(30):
        small = mark % 3 == 2
        try:
            payload = json.dumps({"mark": mark}).encode().ljust(100 if small else 3000)
            await service.intake.post([IncomingGroup(None, 2, payload)], many=False, key=None)
            acknowledged.append(mark)
        except StoreError as error:
            assert "cannot write" in error.message, error
    await journal.close()
    print(json.dumps(acknowledged))

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
asyncio.run(main())
"""


async def test_a_full_disk_refuses_what_does_not_fit_and_loses_nothing(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FULL_DISK, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    acknowledged = json.loads((await process.communicate())[0])
    first_refused = next(mark for mark in range(30) if mark not in acknowledged)
    assert acknowledged[-1] > first_refused, "small groups still fit after a large one did not"
    journal, service = await opened(tmp_path)
    kept = [json.loads(journal.readers([group.id])[0]())["mark"] for group in service.state.queue]
    assert kept == acknowledged
    await journal.close()


def test_a_server_whose_disk_is_full_says_503_and_goes_on(launch: Launch, tmp_path: Path) -> None:
    server = launch(state_dir=tmp_path)
    api: Client = server.client
    api.register(batch_size=2)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    refused = api.ask("POST", "/scored_data", group(images="x" * 200_000))
    assert refused.status == 503
    assert refused.headers["retry-after"]
    assert "cannot write" in refused.json()["detail"]
    api.post("/scored_data", group(mark=1))
    resource.prlimit(
        server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    api.post("/scored_data", group(mark=2, images="x" * 200_000))
    assert [marks(api.batch()), marks(api.batch())] == [[1], [2]]
    assert server.stop() == 0
