"""Groups as data: joined from single answers, validated before they are sent, written as JSON lines.

Validation never repairs a score. A score that is no finite number (a reward function returned NaN or text)
makes the whole group unusable, since the other scores are relative to it: the group is rejected with a
reason.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

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
    """One group of single answers. A field that only some have is omitted: a gap would shift the rest."""
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


def rejection_reason(group: Mapping[str, Any], config: BaseEnvConfig, max_tokens: int | None) -> str | None:
    """Why the group cannot be used, in a few words to count by; None if it can.

    `max_tokens`: the length that no sequence may reach; None: no limit.
    """
    size = (group.get("group_overrides") or {}).get("group_size", config.group_size)
    tokens, scores = group.get("tokens"), group.get("scores")
    if not isinstance(tokens, list) or len(tokens) != size or group.get("masks") is None:
        return "wrong size"
    if not isinstance(scores, list) or not all(map(_is_finite_number, scores)):
        return "bad score"
    same = len(scores) > 1 and len({float(score) for score in scores}) == 1
    if config.ensure_scores_are_not_same and same and not _has_token_advantages(group):
        return "equal scores"
    if max_tokens is not None and any(len(sequence) >= max_tokens for sequence in tokens):
        return "too long"
    return None


def _has_token_advantages(group: Mapping[str, Any]) -> bool:
    """Whether the group has advantages for single tokens that are not all zero."""
    advantages = group.get("advantages")
    return advantages is not None and any(
        advantage for sequence in advantages if sequence is not None for advantage in sequence
    )


def _is_finite_number(value: Any) -> bool:
    if isinstance(value, str | bytes) or value is None:
        return False
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def encode(value: Any) -> str:
    """JSON of a group; numbers may be numpy's or torch's. NaN raises ValueError: it is not valid JSON."""
    return json.dumps(value, default=to_plain, allow_nan=False)


def to_plain(value: Any) -> Any:
    """A value that json cannot encode as one that it can; for `json.dumps(default=…)`."""
    for name in ("tolist", "item", "model_dump"):
        if callable(method := getattr(value, name, None)):
            return method()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | tuple | frozenset):
        return list(value)
    return str(value)


def encode_line(group: Mapping[str, Any]) -> bytes:
    return encode(group).encode() + b"\n"


class GroupSink(Protocol):
    """Where kept groups go: a file, or the lines of the item that is being delivered."""

    def write(self, group: Mapping[str, Any]) -> None: ...


class GroupWriter:
    """Writes one JSON line for each group. The file is created by the first write, and none is overwritten.

    `path` is where it really writes: the first of name.jsonl, name_1.jsonl … that did not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: BinaryIO | None = None

    def write(self, group: Mapping[str, Any]) -> None:
        self.append([encode_line(group)])

    def append(self, lines: Sequence[bytes]) -> None:
        file = self.open()
        file.write(b"".join(lines))
        file.flush()

    def open(self) -> BinaryIO:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file, self.path = _create(self.path)
        return self._file

    def resume(self, path: Path, at_bytes: int) -> None:
        """Appends to an existing file after its first `at_bytes` bytes; the rest is cut off."""
        self.path = path
        self._file = path.open("r+b")
        os.fchmod(self._file.fileno(), 0o600)
        self._file.truncate(at_bytes)
        self._file.seek(0, 2)

    def tell(self) -> int:
        return self.open().tell()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def existing_outputs(path: Path) -> list[Path]:
    """The files that earlier runs wrote for this name, oldest first."""
    outputs: list[Path] = []
    candidate = path
    while candidate.exists():
        outputs.append(candidate)
        candidate = path.with_stem(f"{path.stem}_{len(outputs)}")
    return outputs


def _create(path: Path) -> tuple[BinaryIO, Path]:
    """Creates the first file of name, name_1 … that does not exist."""
    counter, candidate = 0, path
    while True:
        try:
            # Private: the answers of a policy can hold what it read.
            descriptor = os.open(candidate, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            return os.fdopen(descriptor, "r+b"), candidate
        except FileExistsError:
            counter += 1
            candidate = path.with_stem(f"{path.stem}_{counter}")
