"""Train or eval, by hash: a task is on the same side in every export, run and round of ratings.

Tasks that ask the same are one group, and a group is on one side, so that nothing held out was trained on:
attempts at one task, tasks with the same first user message (case, width and spacing aside), and tasks with
nearly the same one. Messages are nearly the same if they share more than 60 % of their runs of five words.
Runs that more than 20 different messages contain are those of a template and do not count. No paraphrase is
recognised. A group has the side of its oldest message, and keeps it when others join.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import nsmallest
from itertools import chain
from typing import TYPE_CHECKING

from hermes.core import JSONObject
from hermes.data.curate.base import shingles, words
from hermes.data.example import task_key

if TYPE_CHECKING:
    from hermes.store import Reader

_RUN_WORDS = 5
_NEAR = 0.6
_TEMPLATE_PROMPTS = 20
_SKETCH = 128
"""Most runs of a message that are compared: those with the lowest hashes."""


class Side(StrEnum):
    TRAIN = "train"
    EVAL = "eval"


@dataclass(frozen=True)
class TaskGroups:
    """The group of each task, and why tasks were joined."""

    keys: Mapping[str, str]
    """Task → the oldest prompt of its group."""
    same_prompt: int = 0
    """Tasks that were joined to an older one because of an equal prompt."""
    near_prompt: int = 0
    """Groups that were joined because their prompts are nearly the same."""

    def key(self, task: str) -> str:
        return self.keys.get(task, task)

    def facts(self) -> JSONObject:
        return {
            "tasks": len(self.keys),
            "groups": len(set(self.keys.values())),
            "joined": {"same prompt": self.same_prompt, "nearly the same prompt": self.near_prompt},
        }

    def __str__(self) -> str:
        reasons = f"{self.same_prompt} joined by the same prompt, {self.near_prompt} by nearly the same"
        return f"{len(self.keys)} tasks in {len(set(self.keys.values()))} groups ({reasons})"


NO_GROUPS = TaskGroups({})
"""Every task is by itself."""


def side_of(group: str, eval_share: float) -> Side:
    """`group` as `TaskGroups.key` gives it; `eval_share` of all groups, on average, are for evaluation."""
    digest = hashlib.blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8, person=b"hermes-split")
    drawn = int.from_bytes(digest.digest(), "big") / 2**64
    return Side.EVAL if drawn < eval_share else Side.TRAIN


def store_groups(reader: Reader) -> TaskGroups:
    """The groups of all tasks of a store, whichever of them are selected: another export has the same."""
    return group_tasks((task_key(*row), row.prompt) for row in reader.task_prompts())


def group_tasks(tasks: Iterable[tuple[str, str]]) -> TaskGroups:
    """From every attempt's task and prompt, oldest first. A prompt without text joins nothing."""
    numbers: dict[str, int] = {}
    roots: list[int] = []
    firsts: dict[str, int] = {}

    def root_of(number: int) -> int:
        while roots[number] != number:
            roots[number] = number = roots[roots[number]]
        return number

    def join(left: int, right: int) -> int:
        """1 if the two were apart before."""
        older, newer = sorted((root_of(left), root_of(right)))
        roots[newer] = older
        return int(older != newer)

    for task, prompt in tasks:
        text = _normalised(prompt) or task
        if text not in numbers:
            numbers[text] = len(roots)
            roots.append(len(roots))
        join(firsts.setdefault(task, numbers[text]), numbers[text])
    prompts = list(numbers)
    apart = len({root_of(number) for number in range(len(prompts))})
    near = sum(join(left, right) for left, right in _near_pairs(prompts))
    keys = {task: prompts[root_of(number)] for task, number in firsts.items()}
    return TaskGroups(keys, len(firsts) - apart, near)


def _normalised(prompt: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", prompt).casefold().split())


def _near_pairs(prompts: Sequence[str]) -> Iterator[tuple[int, int]]:
    sketches = [
        nsmallest(_SKETCH, set(shingles(prompt, _RUN_WORDS))) if len(words(prompt)) >= _RUN_WORDS else []
        for prompt in prompts
    ]
    prompts_with = Counter(run for sketch in sketches for run in sketch)
    postings: dict[int, list[int]] = defaultdict(list)
    sizes: list[int] = []
    for number, sketch in enumerate(sketches):
        runs = [run for run in sketch if prompts_with[run] <= _TEMPLATE_PROMPTS]
        for earlier, shared in Counter(chain.from_iterable(postings[run] for run in runs)).items():
            if shared > _NEAR * (len(runs) + sizes[earlier] - shared):
                yield earlier, number
        for run in runs:
            postings[run].append(number)
        sizes.append(len(runs))
