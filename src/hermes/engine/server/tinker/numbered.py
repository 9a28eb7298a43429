"""What the numbered calls of a model have in common.

Only the model and the number are read before a call joins its lane; the rest is read when its turn comes, so
that whatever is wrong with it becomes the call's result. A number that was refused would be missing for ever,
and the calls after it would wait for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from pydantic import BaseModel
from starlette.responses import Response

from hermes.engine.server.responses import as_json, checked_json, parse_json
from hermes.engine.server.tinker import schema
from hermes.engine.server.tinker.futures import Payload, PendingFuture
from hermes.engine.server.tinker.sessions import Model
from hermes.engine.types import EngineUserError

T = TypeVar("T")
Shape = TypeVar("Shape", bound=BaseModel)


class NumberedCalls(NamedTuple):
    model_id: str
    number: int
    digest: bytes
    """Of what is asked for, the same however often it is sent."""
    body: bytes

    def parse(self, shape: type[Shape]) -> Shape:
        """EngineUserError: it has another."""
        return parse_json(self.body, shape)


def numbered(body: bytes) -> NumberedCalls:
    """Refused: not even the model and the number can be read."""
    reference = checked_json(body, schema.NumberedBody)
    content = dict(reference.model_extra or {})
    content.pop("sampling_session_seq_id", None)  # the SDK counts it up when it sends a submission again
    digest = digest_of(json.dumps(content, sort_keys=True).encode())
    return NumberedCalls(reference.model_id, reference.seq_id, digest, body)


def digest_of(content: bytes) -> bytes:
    return hashlib.blake2b(content).digest()


def accepted(model: Model, call: PendingFuture) -> Response:
    return as_json({"request_id": call.id, "model_id": model.run.id})


async def rendered(future: Future[T], render: Callable[[T], Payload]) -> Payload:
    return render(await asyncio.wrap_future(future))


def adapter_of(model: Model) -> str:
    """EngineUserError: it was never made, or is gone."""
    if model.adapter_id is None:
        raise EngineUserError(f"model {model.run.id} was not made", "look at what create_model answered")
    return model.adapter_id
