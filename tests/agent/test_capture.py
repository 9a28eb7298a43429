"""Recording one trajectory on a disk that has no room for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.agent.capture import Recorder
from hermes.core import Message, Outcome, Step, StepKind, StopReason
from hermes.errors import StoreError
from hermes.store import Writer
from tests.records import header


async def test_a_trajectory_that_could_not_be_begun_is_reported_as_that_and_leaves_nothing_to_finish(
    small_disk: Path,
) -> None:
    with Writer(small_disk / "hermes.db") as writer:
        recorder = Recorder(writer, header())
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "filler").write_bytes(bytes(2**20))
        with pytest.raises(StoreError, match=f"cannot write to {small_disk}"):
            await recorder.append(Step(0, StepKind.INPUT, Message.user("x" * 100_000), 0))
        assert not recorder.begun
        await recorder.finish(Outcome(StopReason.COMPLETED))
