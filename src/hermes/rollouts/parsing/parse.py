"""Parses bodies into groups: by the fast path where it applies, otherwise with the full schema."""

from __future__ import annotations

import functools
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from hermes.core.json import JSONObject
from hermes.rollouts.parsing.fast_path import IncomingGroup, match_group, match_list
from hermes.rollouts.schema import MAX_LIST, ScoredData, error_details


class BodyError(Exception):
    """The body does not match the schema."""

    def __init__(self, details: list[JSONObject]) -> None:
        super().__init__(details)
        self.details = details
        """The `detail` of the 422 response."""


@functools.cache
def _list_adapter() -> TypeAdapter[list[ScoredData]]:
    return TypeAdapter(Annotated[list[ScoredData], Field(max_length=MAX_LIST)])


def parse(body: bytes, *, many: bool) -> list[IncomingGroup]:
    """The group in `body`, or the list of groups if `many`. BodyError names each wrong field by its path."""
    return parse_fast(body, many=many) or parse_validated(body, many=many)


def parse_fast(body: bytes, *, many: bool) -> list[IncomingGroup] | None:
    """As `parse`, or None if the fast path does not apply. Releases the interpreter."""
    if many:
        return match_list(body)
    group = match_group(body)
    return [group] if group else None


def parse_validated(body: bytes, *, many: bool) -> list[IncomingGroup]:
    """As `parse`, with the full schema. Holds the interpreter for about 7 ms per megabyte."""
    try:
        groups = _list_adapter().validate_json(body) if many else [ScoredData.model_validate_json(body)]
    except ValidationError as error:
        raise BodyError(error_details(error)) from error
    return [IncomingGroup(g.env_id, len(g.tokens), g.model_dump_json().encode()) for g in groups]
