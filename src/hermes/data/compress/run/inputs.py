"""Where rows come from: a JSONL file, a folder of them, a batch run, or trajectories in the store.

Rows are read one at a time. A folder gives each row once: a run's folder has its merged file, which is all
that is read of it, and elsewhere a row that an earlier file had is skipped. A line that cannot be decoded is
still an item, so that it is counted and reported with its number. Whole records and ATIF rows are read as the
store would give them: ephemeral messages and compressed trajectories are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, file_digest
from pathlib import Path

from hermes.core import JSONObject, Relation, Trajectory
from hermes.data.compress.run.job import CompressItem
from hermes.data.example import Example, load
from hermes.data.formats import sharegpt
from hermes.data.formats.base import BadRowError
from hermes.data.formats.record import latest_rating, latest_reward
from hermes.data.importing import read_row
from hermes.data.lines import Line
from hermes.data.where import Condition
from hermes.errors import UsageError
from hermes.store import Filter, Reader

MERGED = "trajectories.jsonl"
_ASIDE = ("filtered", "failed", "bad_rows", "checkpoint")
_OURS = ("_compressed", "_kept_aside", "_bad_rows")
_EXAMPLE_MARKS = ('"record_version"', '"schema_version"')
"""In rows that are read as an import reads them: whole records, ATIF."""


@dataclass(frozen=True, slots=True)
class FileInputs:
    """Rows in files."""

    paths: tuple[Path, ...]
    output: Path
    """The default path of the result."""
    run: bool = False
    """A batch run: its trajectories are in the store too."""

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def digest(self) -> str:
        """The hash of everything in the files."""
        whole = blake2b(digest_size=16)
        for path in self.paths:
            with path.open("rb") as file:
                whole.update(file_digest(file, "blake2b").digest())
        return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class Query:
    """Trajectories in the store."""

    filters: Filter
    where: tuple[Condition, ...] = ()


def find_files(reference: str, data: Path = Path("data")) -> FileInputs | None:
    """The meaning of the user's words, if they name a file, a folder or a run under `data`; else None."""
    path = Path(reference).expanduser()
    if path.is_file():
        return FileInputs((path,), path.with_name(f"{path.stem}_compressed.jsonl"))
    named = data / reference
    folder = path if path.is_dir() else named if reference and named.is_dir() else None
    if folder is None:
        return None
    if (folder / MERGED).is_file():
        run = (folder / "run.json").is_file()
        return FileInputs((folder / MERGED,), folder / "trajectories_compressed.jsonl", run)
    paths = tuple(path for path in sorted(folder.glob("*.jsonl")) if not _is_ours(path.stem))
    if not paths:
        raise UsageError(f"there is no JSONL file in {folder}", "name a file, or a folder that has some")
    whole = folder.resolve()
    return FileInputs(paths, whole.with_name(f"{whole.name}_compressed") / MERGED)


def _is_ours(stem: str) -> bool:
    return stem in _ASIDE or stem.endswith(_OURS)


def file_items(
    files: FileInputs, reader: Reader | None, sample_percent: float, seed: int
) -> Iterator[CompressItem]:
    """Every row of the files that the sample takes; of a run, with its record from the store."""
    total = max(1, files.size_bytes)
    read = number = 0
    digests: set[bytes] | None = set() if len(files.paths) > 1 else None
    for path in files.paths:
        with path.open("rb") as file:
            for line_number, line in enumerate(file, 1):
                read += len(line)
                if not line.strip() or (digests is not None and not _is_new(line, digests)):
                    continue
                if is_sampled(number, sample_percent, seed):
                    item = _line_item(f"{path.name}:{line_number}", line, reader, read / total)
                    if item is not None:
                        yield item
                number += 1


def _is_new(line: bytes, digests: set[bytes]) -> bool:
    digest = blake2b(line.strip(), digest_size=16).digest()
    fresh = digest not in digests
    digests.add(digest)
    return fresh


def _line_item(where: str, line: bytes, reader: Reader | None, share: float) -> CompressItem | None:
    """None for a line that is not to be compressed."""
    try:
        text = line.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        text = line.decode("utf-8", "replace").strip()
        return CompressItem(where, text, broken=f"not UTF-8 text: {error.reason}", share=share)
    if any(mark in text for mark in _EXAMPLE_MARKS):
        return _example_item(where, text, share)
    record = _record_of(text, reader) if reader is not None else None
    return CompressItem(where, text, record, share=share)


def _example_item(where: str, text: str, share: float) -> CompressItem | None:
    """A row that is no list of turns; a line that only mentions such a mark is an ordinary one."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        return CompressItem(where, text, broken=f"not JSON: {error}", share=share)
    if not isinstance(row, dict) or not row.keys() & {"record_version", "schema_version"}:
        return CompressItem(where, text, share=share)
    try:
        example = read_row(Line(1, row, None), None, None)
    except BadRowError as error:
        return CompressItem(where, text, broken=str(error), share=share)
    if example.trajectory.header.relation is Relation.COMPRESSED:
        return None
    if example.record is not None:
        reward, rating = latest_reward(example.record), latest_rating(example.record)
        example = replace(example, reward=reward, rating=rating)
    return _stored_item(where, example, share)


def _record_of(text: str, reader: Reader) -> JSONObject | None:
    try:
        identity = json.loads(text)["id"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(identity, str) or not reader.count(Filter(ids=(identity,))):
        return None
    trajectory = reader.get(identity)
    return _record(trajectory, load(reader, trajectory).tools)


def store_items(reader: Reader, query: Query, sample_percent: float, seed: int) -> Iterator[CompressItem]:
    """Every finished trajectory that matches, oldest first; compressed ones are not compressed again."""
    total = max(1, reader.count(query.filters))
    number = 0
    for read, trajectory in enumerate(reader.trajectories(query.filters), 1):
        if trajectory.outcome is None or trajectory.header.relation is Relation.COMPRESSED:
            continue
        example = load(reader, trajectory)
        if not all(condition.holds(example) for condition in query.where):
            continue
        if is_sampled(number, sample_percent, seed):
            yield _stored_item(trajectory.header.id, example, read / total)
        number += 1


def _stored_item(where: str, example: Example, share: float) -> CompressItem:
    row = sharegpt.to_row(example.trajectory, (), reward=example.reward, rating=example.rating)
    text = json.dumps({**row, "conversations": []}, ensure_ascii=False)
    return CompressItem(where, text, _record(example.trajectory, example.tools), share=share)


def _record(trajectory: Trajectory, tools: Sequence[JSONObject]) -> JSONObject:
    return {"messages": [message.to_json() for message in trajectory.messages], "tools": list(tools)}


def is_sampled(number: int, percent: float, seed: int) -> bool:
    """A draw that depends on nothing but the seed and the row's place, so a resumed run draws the same."""
    if percent >= 100:
        return True
    digest = blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 * 100 < percent
