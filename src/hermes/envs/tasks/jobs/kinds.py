"""Shell jobs: the files of the workspace, the instruction, the checks of the result and a solution.

Each kind is a function that draws a job. A job is done if all its checks pass. Checks read files, and run
only the script that the job asked for. No job is done to begin with, and files that must not change are
checked as well.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hermes.core import JSON
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.envs.tasks.vocabulary import CITIES, COLOURS, PEOPLE, SUBJECTS, THINGS


class JobWorkspace(Protocol):
    """The workspace a job was done in, as the checks read it."""

    async def read_text(self, path: str) -> str | None:
        """A file's text; None if there is no such regular file."""
        ...

    async def exists(self, path: str) -> bool: ...

    async def run_command(self, command: str) -> str | None:
        """The command's output; None if it fails."""
        ...


@dataclass(frozen=True, slots=True)
class FileIs:
    path: str
    text: str
    """Compared line by line; white space at the ends of lines and of the file does not count."""


@dataclass(frozen=True, slots=True)
class JsonIs:
    path: str
    value: JSON


@dataclass(frozen=True, slots=True)
class FileAbsent:
    path: str


@dataclass(frozen=True, slots=True)
class Prints:
    command: str
    text: str


Check = FileIs | JsonIs | FileAbsent | Prints


@dataclass(frozen=True, slots=True)
class TerminalJob:
    kind: str
    instruction: str
    files: Mapping[str, str]
    checks: tuple[Check, ...]
    solution: str
    """A shell command that does the job."""
    key: str = field(default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.kind} {self.instruction} {sorted(self.files.items())}")


async def grade_job(job: TerminalJob, workspace: JobWorkspace) -> RewardResult:
    """1 if all checks pass.

    `progress` is the share of the work that is done: 0 for doing nothing, and for changing what had to stay.
    """
    failing = [check for check in job.checks if not await _passes(check, workspace)]
    initially_failing = [check for check in job.checks if not await _passes(check, _InitialFiles(job.files))]
    if not initially_failing:
        raise GraderError(f"the job was done before it began: {job.instruction}")
    spoilt = any(check not in initially_failing for check in failing)
    progress = 0.0 if spoilt else 1 - len(failing) / len(initially_failing)
    detail = "; ".join(_describe_failure(check) for check in failing[:3])
    return RewardResult(float(not failing), {"progress": progress}, detail)


class _InitialFiles:
    """The workspace before the job."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    async def read_text(self, path: str) -> str | None:
        return self._files.get(path)

    async def exists(self, path: str) -> bool:
        return path in self._files

    async def run_command(self, command: str) -> str | None:
        return None


async def _passes(check: Check, workspace: JobWorkspace) -> bool:
    match check:
        case FileIs(path, text):
            actual = await workspace.read_text(path)
            return actual is not None and _lines(actual) == _lines(text)
        case JsonIs(path, value):
            return bool(_parsed(await workspace.read_text(path)) == value)
        case FileAbsent(path):
            return not await workspace.exists(path)
        case Prints(command, text):
            printed = await workspace.run_command(command)
            return printed is not None and _lines(printed) == _lines(text)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _parsed(text: str | None) -> JSON:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _describe_failure(check: Check) -> str:
    match check:
        case FileIs(path) | JsonIs(path):
            return f"{path} does not have the expected content"
        case FileAbsent(path):
            return f"{path} still exists"
        case Prints(command):
            return f"'{command}' does not print the expected text"


def make_job(rng: random.Random) -> TerminalJob:
    return rng.choice(_KINDS)(rng)


def _write(rng: random.Random) -> TerminalJob:
    path = f"{rng.choice(SUBJECTS)}/{rng.choice(THINGS)}.txt"
    text = f"{rng.choice(PEOPLE)} of {rng.choice(CITIES)}"
    return TerminalJob(
        "write",
        f"Create the file {path} with exactly this one line: {text}",
        {},
        (FileIs(path, text),),
        f"mkdir -p {path.split('/')[0]} && echo '{text}' > {path}",
    )


def _log(rng: random.Random) -> tuple[str, list[str]]:
    levels = rng.choices(("INFO", "WARNING", "ERROR"), k=rng.randint(12, 40))
    lines = [f"{number:04} {level} {rng.choice(THINGS)}" for number, level in enumerate(levels)]
    return f"{rng.choice(SUBJECTS)}.log", lines


def _count(rng: random.Random) -> TerminalJob:
    path, lines = _log(rng)
    level = rng.choice(("INFO", "WARNING", "ERROR"))
    count = sum(level in line for line in lines)
    return TerminalJob(
        "count",
        f"Count the {level} lines of {path} and write only the number to count.txt.",
        {path: "\n".join(lines) + "\n"},
        (FileIs("count.txt", str(count)), FileIs(path, "\n".join(lines))),
        f"grep -c {level} {path} > count.txt || true",
    )


def _extract(rng: random.Random) -> TerminalJob:
    path, lines = _log(rng)
    level = rng.choice(("INFO", "WARNING", "ERROR"))
    matching = [line for line in lines if level in line]
    return TerminalJob(
        "extract",
        f"Copy every line of {path} that contains {level} to {level.lower()}.txt, in the same order.",
        {path: "\n".join(lines) + "\n"},
        (FileIs(f"{level.lower()}.txt", "\n".join(matching)), FileIs(path, "\n".join(lines))),
        f"grep {level} {path} > {level.lower()}.txt || true",
    )


def _table(rng: random.Random) -> list[tuple[str, int]]:
    names = rng.sample(THINGS, rng.randint(6, 15))
    return [(name, number) for name, number in zip(names, rng.sample(range(1, 900), len(names)), strict=True)]


def _csv(rows: list[tuple[str, int]]) -> str:
    return "item,price\n" + "".join(f"{name},{price}\n" for name, price in rows)


def _total(rng: random.Random) -> TerminalJob:
    rows = _table(rng)
    return TerminalJob(
        "total",
        "Add up the price column of prices.csv and write only the total to total.txt.",
        {"prices.csv": _csv(rows)},
        (FileIs("total.txt", str(sum(price for _, price in rows))), FileIs("prices.csv", _csv(rows))),
        "awk -F, 'NR > 1 {sum += $2} END {print sum}' prices.csv > total.txt",
    )


def _sort(rng: random.Random) -> TerminalJob:
    rows = _table(rng)
    ordered = sorted(rows, key=lambda row: row[1])
    return TerminalJob(
        "order",
        "Sort the rows of prices.csv by price, lowest first, into sorted.csv. Keep the header line first.",
        {"prices.csv": _csv(rows)},
        (FileIs("sorted.csv", _csv(ordered)), FileIs("prices.csv", _csv(rows))),
        "(head -1 prices.csv; tail -n +2 prices.csv | sort -t, -k2 -n) > sorted.csv",
    )


def _filter(rng: random.Random) -> TerminalJob:
    rows = _table(rng)
    limit = rng.randint(200, 700)
    expensive = [row for row in rows if row[1] > limit]
    return TerminalJob(
        "filter",
        f"Write the rows of prices.csv with a price above {limit} to dear.csv: header first, same order.",
        {"prices.csv": _csv(rows)},
        (FileIs("dear.csv", _csv(expensive)), FileIs("prices.csv", _csv(rows))),
        f"awk -F, 'NR == 1 || $2 > {limit}' prices.csv > dear.csv",
    )


def _rename(rng: random.Random) -> TerminalJob:
    folder = rng.choice(SUBJECTS)
    names = rng.sample(THINGS, 5)
    texts = {name: f"{rng.choice(COLOURS)} {name}\n" for name in names}
    files = {
        f"{folder}/{name}.{'txt' if index < 3 else 'log'}": texts[name] for index, name in enumerate(names)
    }
    checks: list[Check] = [FileIs(f"{folder}/{name}.md", texts[name]) for name in names[:3]]
    checks += [FileAbsent(f"{folder}/{name}.txt") for name in names[:3]]
    checks += [FileIs(f"{folder}/{name}.log", texts[name]) for name in names[3:]]
    return TerminalJob(
        "rename",
        f"In the folder {folder}, give every file that ends in .txt the ending .md instead. "
        "Leave the other files alone.",
        files,
        tuple(checks),
        f'for f in {folder}/*.txt; do mv "$f" "${{f%.txt}}.md"; done',
    )


def _replace(rng: random.Random) -> TerminalJob:
    old, new = rng.sample(CITIES, 2)
    folder = rng.choice(SUBJECTS)
    files = {
        f"{folder}/{name}.txt": f"{rng.choice(PEOPLE)} went to {rng.choice((old, old, 'Rome'))}.\n"
        for name in rng.sample(THINGS, 4)
    }
    files[f"{folder}/first.txt"] = f"{old} is far, says {rng.choice(PEOPLE)} of {old}.\n"
    return TerminalJob(
        "replace",
        f"Replace every {old} by {new} in all files of the folder {folder}.",
        files,
        tuple(FileIs(path, text.replace(old, new)) for path, text in files.items()),
        f"sed -i 's/{old}/{new}/g' {folder}/*.txt",
    )


def _unique(rng: random.Random) -> TerminalJob:
    names = [rng.choice(PEOPLE[:40]) for _ in range(rng.randint(15, 40))]
    text = "\n".join(names) + "\n"
    return TerminalJob(
        "unique",
        "Write the names in names.txt to unique.txt, each once, in alphabetical order, one to a line.",
        {"names.txt": text},
        (FileIs("unique.txt", "\n".join(sorted(set(names)))), FileIs("names.txt", text)),
        "LC_ALL=C sort -u names.txt > unique.txt",
    )


def _settings(rng: random.Random) -> TerminalJob:
    section, key = rng.choice(SUBJECTS), rng.choice(THINGS)
    value = rng.randint(10, 9999)
    before = {section: {key: value + rng.randint(1, 99), "colour": rng.choice(COLOURS)}, "version": 1}
    after = {**before, section: {**before[section], key: value}}  # type: ignore[dict-item]
    edit = f"import json; d = json.load(open('config.json')); d['{section}']['{key}'] = {value}; "
    return TerminalJob(
        "settings",
        f"In config.json set {section}.{key} to {value}. Change nothing else.",
        {"config.json": json.dumps(before, indent=2)},
        (JsonIs("config.json", after),),
        f"python3 -c \"{edit}json.dump(d, open('config.json', 'w'))\"",
    )


def _remove(rng: random.Random) -> TerminalJob:
    folder = rng.choice(SUBJECTS)
    names = rng.sample(THINGS, 6)
    texts = {name: "" if index < 3 else f"{rng.choice(CITIES)}\n" for index, name in enumerate(names)}
    checks: list[Check] = [FileAbsent(f"{folder}/{name}.dat") for name in names[:3]]
    checks += [FileIs(f"{folder}/{name}.dat", texts[name]) for name in names[3:]]
    return TerminalJob(
        "remove",
        f"Delete the empty files in the folder {folder}, and only those.",
        {f"{folder}/{name}.dat": text for name, text in texts.items()},
        tuple(checks),
        f"find {folder} -type f -empty -delete",
    )


def _script(rng: random.Random) -> TerminalJob:
    name, city = rng.choice(THINGS), rng.choice(CITIES)
    arguments = [rng.choice(PEOPLE).split()[0] for _ in range(2)]
    path = f"{name}.sh"
    return TerminalJob(
        "script",
        f"Write a shell script {path} that takes one argument and prints 'ARGUMENT lives in {city}', "
        "with the argument in place of ARGUMENT. It is run with: sh " + path + " NAME",
        {},
        tuple(Prints(f"sh {path} {argument}", f"{argument} lives in {city}") for argument in arguments),
        f"echo 'echo \"$1 lives in {city}\"' > {path}",
    )


def _merge(rng: random.Random) -> TerminalJob:
    count = rng.randint(3, 12)
    texts = [f"{rng.choice(PEOPLE)}: {rng.choice(THINGS)}\n" for _ in range(count)]
    return TerminalJob(
        "merge",
        "Join the files part1.txt, part2.txt and so on into whole.txt, in the order of their numbers.",
        {f"part{number}.txt": text for number, text in enumerate(texts, 1)},
        (FileIs("whole.txt", "".join(texts)), FileIs("part1.txt", texts[0])),
        "cat $(ls part*.txt | sort -V) > whole.txt",
    )


_KINDS: tuple[Callable[[random.Random], TerminalJob], ...] = (
    _write,
    _count,
    _extract,
    _total,
    _sort,
    _filter,
    _rename,
    _replace,
    _unique,
    _settings,
    _remove,
    _script,
    _merge,
)
