"""Summaries by a model that is a fake provider."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.provider import Reply, text

PARTS = re.compile(r"^### (\d+)\nat most (\d+) words\n(?:keep: (.*)\n)?", re.MULTILINE)


def summaries(body: dict[str, Any], *, forget: bool = False, ramble: int = 0) -> Reply:
    """A model that does as it is told: one section for each part, with the words to keep."""
    prompt = body["messages"][-1]["content"]
    sections = []
    for number, _, keep in PARTS.findall(prompt):
        words = "" if forget else keep
        sections.append(f"### {number}\nThe output states: {words}." + " and so on" * ramble)
    return text("\n".join(sections))
