"""Bodies of groups through the parser of the trajectory API."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from hermes.rollouts.parsing.fast_path import match_group
from hermes.rollouts.schema import ScoredData
from tests.rollouts.conftest import KEYS


def parsed(body: bytes) -> dict[str, Any] | None:
    try:
        return json.loads(ScoredData.model_validate_json(body).model_dump_json())  # type: ignore[no-any-return]
    except ValidationError:
        return None


def same(left: Any, right: Any) -> bool:
    """Equal, and 1 is not 1.0."""
    return json.dumps(left) == json.dumps(right)


def check(body: bytes) -> bool:
    known = match_group(body)
    if known is None:
        return False
    expected = parsed(body)
    found = json.loads(known.payload)
    assert expected is not None
    assert found.keys() == set(KEYS)
    assert all(same(found[key], expected[key]) for key in KEYS)
    assert (known.env_id, known.size) == (expected["env_id"], len(expected["tokens"]))
    return True
