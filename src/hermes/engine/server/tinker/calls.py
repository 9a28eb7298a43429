"""The numbered calls of a model: how they are read, submitted and answered.

Only the model and the number are validated before a call is queued. The rest is validated when the call
starts, so that an error in it becomes the call's result. A call that was rejected at once would leave a gap
in the numbers, and the calls after it would wait for it.
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

from hermes.engine.server.responses import as_json, parse_json, validate_json
from hermes.engine.server.tinker import schema
from hermes.engine.server.tinker.futures import Payload, PendingFuture
from hermes.engine.server.tinker.sessions import Model
from hermes.engine.types import EngineUserError

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)


class NumberedCall(NamedTuple):
    model_id: str
    number: int
    digest: bytes
    """Of the content, the same each time it is submitted."""
    content: bytes

    def parse(self, schema: type[Body]) -> Body:
        """EngineUserError: the content does not match the schema."""
        return parse_json(self.content, schema)


def read_call(content: bytes) -> NumberedCall:
    """RequestError: it has no model and number."""
    reference = validate_json(content, schema.NumberedBody)
    fields = dict(reference.model_extra or {})
    fields.pop("sampling_session_seq_id", None)  # the SDK increments it when it resubmits
    digest = digest_of(json.dumps(fields, sort_keys=True).encode())
    return NumberedCall(reference.model_id, reference.seq_id, digest, content)


def digest_of(content: bytes) -> bytes:
    return hashlib.blake2b(content).digest()


def accepted(model: Model, pending: PendingFuture) -> Response:
    """The response to a call: the id to poll."""
    return as_json({"request_id": pending.id, "model_id": model.run.id})


async def encode_result(future: Future[T], encode: Callable[[T], Payload]) -> Payload:
    return encode(await asyncio.wrap_future(future))


def require_adapter(model: Model) -> str:
    """The adapter id. EngineUserError: it was not created, or was dropped."""
    if model.adapter_id is None:
        raise EngineUserError(
            f"model {model.run.id} has no adapter", "see the error that create_model returned"
        )
    return model.adapter_id
