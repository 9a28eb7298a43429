"""Sending a batch: the bytes of its groups joined, piece by piece, and never parsed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator

from hermes.rollouts.compression import Deflater
from hermes.rollouts.http.asgi import GZIP_FROM_BYTES, HttpRequest, Send, start
from hermes.rollouts.service import BatchDelivery

_PIECE_BYTES = 1 << 20


class _Ending:
    """Whether the connection ended before the answer did."""

    broken = False


async def send_batch(
    request: HttpRequest, send: Send, batch: BatchDelivery, sent: Callable[[bool], None]
) -> None:
    """Sends the batch as the answer; `sent` is told once whether it arrived."""
    ending = _Ending()

    def ended(arrived: bool) -> None:
        ending.broken = not arrived
        sent(arrived)

    request.scope["state"]["connection"].watch(ended)
    lease = batch.lease
    tail = {"lease_id": lease.id, "step": lease.step, "redelivered": lease.redelivered}
    closing = b"]," + json.dumps(tail).encode()[1:]
    length = (
        len(b'{"batch":[') + sum(group.bytes for group in lease.groups) + len(lease.groups) - 1 + len(closing)
    )
    gzip = request.accepts_gzip and length >= GZIP_FROM_BYTES
    headers = [("content-type", "application/json"), ("vary", "accept-encoding")]
    headers.append(("content-encoding", "gzip") if gzip else ("content-length", str(length)))
    await start(send, 200, headers)
    pieces = _pieces(batch, closing, Deflater() if gzip else None)
    last = False
    while not last and not ending.broken:
        # The last piece must end the answer: a client may close as soon as it has all bytes.
        piece, last = await asyncio.to_thread(next, pieces)
        await send({"type": "http.response.body", "body": piece, "more_body": not last})


def _pieces(batch: BatchDelivery, closing: bytes, deflater: Deflater | None) -> Iterator[tuple[bytes, bool]]:
    """The answer in pieces of about a megabyte, each read from the journal when it is its turn."""
    parts, size = [b'{"batch":['], 0
    for index, read in enumerate(batch.readers):
        body = read()
        parts += (b",", body) if index else (body,)
        size += len(body)
        if size >= _PIECE_BYTES:
            piece = b"".join(parts)
            yield (deflater.piece(piece) if deflater else piece), False
            parts, size = [], 0
    piece = b"".join([*parts, closing])
    yield (deflater.piece(piece) + deflater.end() if deflater else piece), True
