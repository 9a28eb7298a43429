"""A provider whose models behave as known: one obeys a planted rule, one proposes, and tasks to ask about.

`worker` answers a question with the capital letters of its word only if its system prompt holds the planted
sentence; `reflector` proposes the planted sentence now and then, and else something useless. Both are drawn
from a seed.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fakes.provider import FakeProvider, Reply, text

PLANTED = "Answer with the word in capital letters and nothing else."
USELESS = ("Be brief.", "Think about the question first.", "Be polite to the user.", "You know many words.")
ENDS = ("ple", "ver", "ne", "dle", "dow", "den", "bel", "der", "ket")
WORDS = [a + b for a in ("ap", "ri", "sto", "can", "win", "gar", "sil", "thu", "mar") for b in ENDS]


def tasks_file(folder: Path, count: int = 80) -> Path:
    path = folder / "tasks.jsonl"
    rows = ({"prompt": f"Write the word {word}.", "expected": word.upper()} for word in WORDS[:count])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def reward_file(folder: Path) -> str:
    path = folder / "score.py"
    path.write_text("def score(ctx):\n    return float(ctx.answer.strip() == ctx.expected)\n")
    return f"{path}:score"


def world(seed: int, good_share: float = 0.2) -> Callable[[dict[str, Any]], Reply]:
    """The script of the provider."""
    drawn = random.Random(seed)

    def reply(request: dict[str, Any]) -> Reply:
        messages = request["messages"]
        asked = messages[-1]["content"]
        if request["model"] == "reflector":
            good = drawn.random() < good_share
            return text(f"Here it is:\n```\n{PLANTED if good else drawn.choice(USELESS)}\n```")
        word = re.search(r"the word (\w+)\.", asked)
        assert word is not None
        system = "\n".join(message["content"] for message in messages if message["role"] == "system")
        return text(word[1].upper() if PLANTED in system else f"The word is {word[1]}.")

    return reply


def configured(home: Path, provider: FakeProvider) -> Path:
    """A home whose provider `fake` is this one."""
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(
        f"providers:\n  fake:\n    base_url: {provider.base_url}\nmodel: fake/worker\n"
        "prices:\n  fake/worker: {input: 1, output: 1}\n  fake/reflector: {input: 1, output: 1}\n"
    )
    return home
