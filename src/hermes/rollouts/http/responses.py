"""Responses: JSON and text, compressed where the client accepts gzip; and batches, streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hermes.core.json import JSONObject
from hermes.rollouts.compression import GZIP_FROM_BYTES, Deflater, compress
from hermes.rollouts.service import BatchDelivery

if TYPE_CHECKING:
    from hermes.rollouts.http.protocol import HttpConnection

_PIECE_BYTES = 1 << 20
_encode = json.JSONEncoder(allow_nan=False).encode


class CompressedResponse(Response):
    """Sent as one body; compressed if the client accepts it and the body is large enough."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self.body) >= GZIP_FROM_BYTES:
            self.headers["vary"] = "accept-encoding"
            if _accepts_gzip(scope):
                self.body = await compress(bytes(self.body))
                self.headers["content-encoding"] = "gzip"
                self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def json_response(
    content: JSONObject, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return CompressedResponse(_encode(content), status, headers, "application/json")


class BatchResponse(Response):
    """A batch: the stored bytes of its groups, joined, sent in pieces of about a megabyte, never parsed."""

    def __init__(self, batch: BatchDelivery, on_sent: Callable[[bool], None]) -> None:
        """`on_sent` is called once: with True when the batch has arrived, with False if it did not."""
        super().__init__(media_type="application/json")
        self._batch = batch
        self._on_sent = on_sent
        self._broken = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: HttpConnection = scope["state"]["connection"]
        connection.watch(self._settle)
        lease = self._batch.lease
        lease_fields = {"lease_id": lease.id, "step": lease.step, "redelivered": lease.redelivered}
        closing = b"]," + json.dumps(lease_fields).encode()[1:]
        size = sum(group.bytes for group in lease.groups)
        length = len(b'{"batch":[') + size + len(lease.groups) - 1 + len(closing)
        deflater = Deflater() if length >= GZIP_FROM_BYTES and _accepts_gzip(scope) else None
        encoding = (b"content-encoding", b"gzip") if deflater else (b"content-length", b"%d" % length)
        headers = [(b"content-type", b"application/json"), (b"vary", b"accept-encoding"), encoding]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        pieces = _pieces(self._batch, closing, deflater)
        last = False
        while not last and not self._broken:
            # The last piece must end the response: a client may close as soon as it has all bytes.
            piece, last = await asyncio.to_thread(next, pieces)
            await send({"type": "http.response.body", "body": piece, "more_body": not last})

    def _settle(self, arrived: bool) -> None:
        self._broken = not arrived
        self._on_sent(arrived)


def _pieces(batch: BatchDelivery, closing: bytes, deflater: Deflater | None) -> Iterator[tuple[bytes, bool]]:
    """(piece, whether it is the last); groups are read from the journal when their piece is due."""
    parts, size = [b'{"batch":['], 0
    for index, read in enumerate(batch.readers):
        body = read()
        parts += (b",", body) if index else (body,)
        size += len(body)
        if size >= _PIECE_BYTES:
            piece = b"".join(parts)
            yield (deflater.compress(piece) if deflater else piece), False
            parts, size = [], 0
    piece = b"".join([*parts, closing])
    yield (deflater.compress(piece) + deflater.flush() if deflater else piece), True


def _accepts_gzip(scope: Scope) -> bool:
    accepted = next((value for name, value in scope["headers"] if name == b"accept-encoding"), b"")
    for coding in accepted.lower().split(b","):
        name, _, quality = coding.replace(b" ", b"").partition(b";q=")
        if name == b"gzip":
            return quality.strip(b"0.") != b"" or quality == b""
    return False
