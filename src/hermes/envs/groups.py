"""Groups as data: joined from single answers, checked before they leave, written as JSON lines.

Checking never repairs a score. One that is no finite number (a reward that returned NaN or text) makes the
whole group unusable, since the others were scored against it; it is refused with a reason, never sent as 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, cast

from hermes.envs.config import BaseEnvConfig
from hermes.envs.types import ScoredDataGroup

PER_SEQUENCE = (
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "messages",
    "inference_logprobs",
    "overrides",
    "images",
    "distill_token_ids",
    "distill_logprobs",
)
_REQUIRED = ("tokens", "masks", "scores")


def join_items(items: Sequence[Mapping[str, Any]]) -> ScoredDataGroup:
    """One group of single answers. What only some of them have is left out: a gap would shift the others."""
    group: dict[str, Any] = {key: [item[key] for item in items] for key in _REQUIRED}
    for key in PER_SEQUENCE[len(_REQUIRED) :]:
        values = [item.get(key) for item in items]
        group[key] = values if values and all(value is not None for value in values) else None
    group["generation_params"] = next(
        (item["generation_params"] for item in items if item.get("generation_params")), None
    )
    merged: dict[str, Any] = {}
    for item in items:
        merged.update(item.get("group_overrides") or {})
    group["group_overrides"] = merged or None
    return cast(ScoredDataGroup, group)


def refusal(group: Mapping[str, Any], config: BaseEnvConfig, longest: int | None) -> str | None:
    """Why the group cannot be used, as a few words to count by; None if it can.

    `longest`: the length in tokens that no sequence may reach; None: any length.
    """
    size = (group.get("group_overrides") or {}).get("group_size", config.group_size)
    tokens, scores = group.get("tokens"), group.get("scores")
    if not isinstance(tokens, list) or len(tokens) != size or group.get("masks") is None:
        return "wrong size"
    if not isinstance(scores, list) or not all(map(_is_finite_number, scores)):
        return "bad score"
    same = len(scores) > 1 and len({float(score) for score in scores}) == 1
    if config.ensure_scores_are_not_same and same and not _tells_tokens_apart(group):
        return "equal scores"
    if longest is not None and any(len(sequence) >= longest for sequence in tokens):
        return "too long"
    return None


def _tells_tokens_apart(group: Mapping[str, Any]) -> bool:
    """Whether it has advantages of its own that teach something."""
    given = group.get("advantages")
    return given is not None and any(value for values in given if values is not None for value in values)


def _is_finite_number(value: Any) -> bool:
    if isinstance(value, str | bytes) or value is None:
        return False
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def encode(value: Any) -> str:
    """JSON of a group; numbers may be numpy's or torch's. NaN is an error, not a word no parser knows."""
    return json.dumps(value, default=_plain, allow_nan=False)


def _plain(value: Any) -> Any:
    for method in ("tolist", "item", "model_dump"):
        if callable(made := getattr(value, method, None)):
            return made()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | tuple | frozenset):
        return list(value)
    return str(value)


_HELD: ContextVar[list[bytes] | None] = ContextVar("hermes_held_groups", default=None)


class GroupWriter:
    """A JSON line for each group. The file appears with the first one; an existing file is not touched.

    `path` is where it really writes: the next free of name.jsonl, name_1.jsonl …, found at the first write.
    """

    def __init__(self, wanted: str | Path) -> None:
        self.path = Path(wanted)
        self._file: BinaryIO | None = None

    def write(self, group: Mapping[str, Any]) -> None:
        line = encode(group).encode() + b"\n"
        if (held := _HELD.get()) is not None:
            held.append(line)
        else:
            self.append([line])

    @contextmanager
    def hold(self) -> Iterator[list[bytes]]:
        """What the code inside writes is gathered instead, to be appended all at once."""
        lines: list[bytes] = []
        before = _HELD.set(lines)
        try:
            yield lines
        finally:
            _HELD.reset(before)

    def append(self, lines: Sequence[bytes]) -> None:
        file = self.open()
        file.write(b"".join(lines))
        file.flush()

    def open(self) -> BinaryIO:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file, self.path = _create(self.path)
        return self._file

    def carry_on(self, path: Path, at_bytes: int) -> None:
        """Goes on with an existing file after its first bytes; what is behind them is cut off."""
        self.path = path
        self._file = path.open("r+b")
        self._file.truncate(at_bytes)
        self._file.seek(0, 2)

    def tell(self) -> int:
        return self.open().tell()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def existing(wanted: Path) -> list[Path]:
    """The files that earlier runs wrote for this name, oldest first."""
    found, counter, path = [], 0, wanted
    while path.exists():
        found.append(path)
        counter += 1
        path = wanted.with_stem(f"{wanted.stem}_{counter}")
    return found


def _create(wanted: Path) -> tuple[BinaryIO, Path]:
    counter = 0
    path = wanted
    while True:
        try:
            return path.open("xb"), path
        except FileExistsError:
            counter += 1
            path = wanted.with_stem(f"{wanted.stem}_{counter}")
