"""From bodies to groups: recognised where possible, otherwise parsed, checked and written anew."""

from __future__ import annotations

import functools
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from hermes.core.json import JSONObject
from hermes.rollouts.parsing.recognise import IncomingGroup, recognise, recognise_list
from hermes.rollouts.schema import MAX_LIST, ScoredData, error_details


class BodyError(Exception):
    """The body is not what the path takes."""

    def __init__(self, details: list[JSONObject]) -> None:
        super().__init__(details)
        self.details = details
        """As in the `detail` of a 422 answer."""


@functools.cache
def _list_adapter() -> TypeAdapter[list[ScoredData]]:
    return TypeAdapter(Annotated[list[ScoredData], Field(max_length=MAX_LIST)])


def parse(body: bytes, *, many: bool) -> list[IncomingGroup]:
    """The group in `body`, or the list of groups if `many`. BodyError names each wrong field by its path."""
    return recognised(body, many=many) or parse_slowly(body, many=many)


def recognised(body: bytes, *, many: bool) -> list[IncomingGroup] | None:
    """As `parse`, or None if that takes more than a look. Lets other threads run."""
    if many:
        return recognise_list(body)
    group = recognise(body)
    return [group] if group else None


def parse_slowly(body: bytes, *, many: bool) -> list[IncomingGroup]:
    """As `parse`, for a body that was not recognised. Holds the interpreter for about 7 ms a megabyte."""
    try:
        groups = _list_adapter().validate_json(body) if many else [ScoredData.model_validate_json(body)]
    except ValidationError as error:
        raise BodyError(error_details(error)) from error
    return [IncomingGroup(g.env_id, len(g.tokens), g.model_dump_json().encode()) for g in groups]
