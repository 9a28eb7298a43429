"""Records one trajectory while it runs: a step is on disk before the next one starts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future

from hermes.core import Header, JSONObject, Message, Outcome, Step
from hermes.store import Writer


class Recorder:
    """Writes one trajectory. Its header is written with the first step, so an unused one leaves no trace."""

    def __init__(self, writer: Writer, header: Header) -> None:
        self._writer = writer
        self.header = header
        self._beginning: Future[None] | None = None
        """Set once the header is queued; the writer stores it even if the caller stops waiting."""
        self._next_index = 0

    @property
    def begun(self) -> bool:
        beginning = self._beginning
        return beginning is not None and beginning.done() and beginning.exception() is None

    def reserve(self) -> int:
        """The next step's index, taken before the step is done: parallel tools keep their calls' order."""
        index = self._next_index
        self._next_index += 1
        return index

    async def append(
        self, step: Step, *, context: Sequence[Message] | None = None, tools: Sequence[JSONObject] = ()
    ) -> None:
        """Returns once the step is durable."""
        if self._beginning is None or (self._beginning.done() and not self.begun):
            self._beginning = self._writer.begin(self.header)
        # queued together, so that both are committed by one flush
        recorded = self._writer.append(self.header.id, step, context=context, tools=tools)
        if not self.begun:  # its failure is the cause; the step's would be "no trajectory"
            await asyncio.wrap_future(self._beginning)
        await asyncio.wrap_future(recorded)

    async def finish(self, outcome: Outcome) -> None:
        if self._beginning is not None:
            beginning = asyncio.wrap_future(self._beginning)
            await asyncio.wait([beginning])
            if not beginning.cancelled():
                beginning.exception()  # `append` raised it; asyncio prints what nobody looks at
        if self.begun:
            await asyncio.wrap_future(self._writer.finish(self.header.id, outcome))
