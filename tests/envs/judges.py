"""A judge whose answers are given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tests.fakes.provider import Reply, text


def key_in(request: dict[str, Any]) -> str:
    found = re.search(r"score_[0-9a-f]+", request["messages"][0]["content"])
    assert found is not None
    return found.group()


def judged_in(request: dict[str, Any]) -> str:
    """The answer as the judge reads it."""
    body = request["messages"][1]["content"]
    answer: str = json.loads(re.search(r"<answer-\w+>\n(.*)\n</answer", body).group(1))  # type: ignore[union-attr]
    return answer


def says(score: Callable[[str], float]) -> Callable[[dict[str, Any]], Reply]:
    def reply(request: dict[str, Any]) -> Reply:
        return text(json.dumps({key_in(request): score(judged_in(request)), "reason": "because"}))

    return reply
