"""Records one trajectory while it runs: a step is on disk before the next one starts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hermes.core import Header, JSONObject, Message, Outcome, Step
from hermes.store import Writer


class Recorder:
    """Writes one trajectory. Its header is written with the first step, so an unused one leaves no trace."""

    def __init__(self, writer: Writer, header: Header) -> None:
        self._writer = writer
        self.header = header
        self._begun = False
        self._next_index = 0

    @property
    def begun(self) -> bool:
        return self._begun

    def reserve(self) -> int:
        """The next step's index, taken before the step is done: parallel tools keep their calls' order."""
        index = self._next_index
        self._next_index += 1
        return index

    async def append(
        self, step: Step, *, context: Sequence[Message] | None = None, tools: Sequence[JSONObject] = ()
    ) -> None:
        """Returns once the step is durable."""
        begin = None if self._begun else self._writer.begin(self.header)
        # queued together, so that both are committed by one flush
        recorded = self._writer.append(self.header.id, step, context=context, tools=tools)
        if begin is not None:
            await asyncio.wrap_future(begin)  # its failure is the cause; the step's would be "no trajectory"
            self._begun = True
        await asyncio.wrap_future(recorded)

    async def finish(self, outcome: Outcome) -> None:
        if self._begun:
            await asyncio.wrap_future(self._writer.finish(self.header.id, outcome))
