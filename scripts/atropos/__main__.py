"""Runs environment files of Atropos in the original library and in Hermes, and compares what they produce.

    python scripts/atropos CHECKOUT --python ORIGINAL/bin/python [--only WORD …] [--modes serve …] [--page P]

CHECKOUT is a folder with the repository's `environments`; ORIGINAL is an environment with atroposlib 0.4.0,
transformers 4 and the packages of the files. Hermes runs in this Python and finds the files' packages there.
Each file runs once on each side against one scripted model, with the same seeds and rows (data.py). Compared
are the groups (tokens, masks, scores, advantages, messages, logprobs, their number and order) and the
requests to the model; of an evaluation, its metrics. The result is a table and results.json in the folder, to
which later runs add; `--page` writes the table of all of them into a page of the documentation, between its
two marks. The exit status is 1 where a file works in the original and Hermes gives something else.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from compare import Outcome, describe, difference
from files import EnvironmentFile, find_files
from reasons import REASONS
from servers import LocalServices
from side import Side, copy_checkout, run_side

from data import tables

GROUPS, GROUP_SIZE = 4, 4
_MODES = ("process", "serve", "evaluate")
_BEGIN, _END = "<!-- scripts/atropos: begin -->", "<!-- scripts/atropos: end -->"


@dataclass(frozen=True, slots=True)
class Comparison:
    file: str
    mode: str
    original: str
    hermes: str
    verdict: str
    """equal, differs, only the original, only Hermes, or neither (with its reason in `why`)."""
    why: str


def main() -> None:
    parser = argparse.ArgumentParser(description="Atropos's environment files in the original and in Hermes")
    parser.add_argument("checkout", type=Path, help="a checkout of NousResearch/atropos")
    parser.add_argument("--python", type=Path, required=True, help="Python with atroposlib 0.4.0")
    parser.add_argument("--tokenizer", type=Path, help="folder of a tokenizer; default: the bundled model's")
    parser.add_argument("--only", nargs="*", default=[], help="files whose path contains one of these words")
    parser.add_argument("--modes", nargs="*", default=list(_MODES))
    parser.add_argument("--folder", type=Path, default=Path(".atropos"), help="logs and results")
    parser.add_argument("--page", type=Path, help="a page whose table is replaced, docs/compat.md")
    parser.add_argument("--limit-s", type=float, default=240.0, help="most seconds of one run")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.json").write_text(json.dumps(tables()), encoding="utf-8")
    tokenizer = _portable_tokenizer(options.tokenizer or _bundled_tokenizer(), folder / "tokenizer")
    original = Side("original", options.python.absolute(), folder, tokenizer, options.limit_s)
    hermes = Side(
        "hermes", Path(sys.executable), folder, tokenizer, options.limit_s, options.python.absolute()
    )
    comparisons: list[Comparison] = []
    checkout = copy_checkout(options.checkout.absolute(), folder)
    for comparison in _compare_all(checkout, original, hermes, options):
        comparisons.append(comparison)
        _add_results(folder / "results.json", [comparison])
    original.forks.close()
    hermes.forks.close()
    sys.stdout.write(_markdown(comparisons))
    if options.page:
        write_page(options.page, _add_results(folder / "results.json", []))
    bad = [comparison for comparison in comparisons if comparison.verdict in ("differs", "only the original")]
    sys.exit(1 if bad or not comparisons else 0)


def _add_results(file: Path, comparisons: Sequence[Comparison]) -> list[Comparison]:
    """All results of the file, each with its newest comparison, by name."""
    earlier = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    rows = {(row["file"], row["mode"]): Comparison(**row) for row in earlier}
    rows |= {(comparison.file, comparison.mode): comparison for comparison in comparisons}
    results = sorted(rows.values(), key=lambda row: (row.file, _MODES.index(row.mode)))
    file.write_text(json.dumps([asdict(row) for row in results], indent=1) + "\n", encoding="utf-8")
    return results


def write_page(page: Path, comparisons: Sequence[Comparison]) -> None:
    """Replaces what stands between the marks: the files that ran on a side, then the others and why not."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        sys.exit(f"{page} has no lines {_BEGIN} and {_END}")
    ran = _markdown([row for row in comparisons if row.verdict != "neither"])
    others = [row for row in comparisons if row.verdict == "neither" and not _ran(row.file, comparisons)]
    lines = ["| on neither side | mode | why |", "|---|---|---|"]
    lines += [f"| {row.file} | {row.mode} | {REASONS.get(row.file) or _short(row.why)} |" for row in others]
    content = f"{ran}\n" + "\n".join(lines)
    page.write_text(f"{before}{_BEGIN}\n\n{content}\n\n{_END}{after}", encoding="utf-8")


def _ran(file: str, comparisons: Sequence[Comparison]) -> bool:
    return any(row.file == file and row.verdict != "neither" for row in comparisons)


def _short(why: str) -> str:
    """At most fifteen words, without the folder of this machine."""
    why = re.sub(r"\S+\.py cannot be imported: ", "", why).partition(" The log has the details")[0]
    words = re.sub(r"/\S*/checkout/(environments/)?", "", why.partition(" Install the package")[0]).split()
    text = " ".join(words[:15]) + (" …" if len(words) > 15 else "")
    return text.replace("<", "&lt;")


def _compare_all(
    checkout: Path, original: Side, hermes: Side, options: argparse.Namespace
) -> Iterator[Comparison]:
    for file in find_files(checkout):
        if options.only and not any(word in file.name for word in options.only):
            continue
        for mode in file.modes(options.modes):
            comparison = _compare(checkout, file, mode, original, hermes)
            sys.stderr.write(f"{comparison.verdict:<18} {mode:<8} {file.name}  {comparison.why}\n")
            yield comparison
            if mode == "process" and comparison.verdict == "neither":
                break


def _compare(checkout: Path, file: EnvironmentFile, mode: str, original: Side, hermes: Side) -> Comparison:
    first = _run(checkout, file, mode, original)
    second = _run(checkout, file, mode, hermes)
    if not first.worked and not second.worked:
        verdict, why = "neither", second.failure or first.failure
    elif not second.worked:
        verdict, why = "only the original", second.failure
    elif not first.worked:
        verdict, why = "only Hermes", first.failure
    else:
        why = difference(first, second)
        verdict = "differs" if why else "equal"
    return Comparison(file.name, mode, describe(first), describe(second), verdict, why)


def _run(checkout: Path, file: EnvironmentFile, mode: str, side: Side) -> Outcome:
    encode, end_token = side.encoder()
    size = file.group_size or GROUP_SIZE
    with LocalServices(encode, end_token, GROUPS, size, file.answers) as services:
        return run_side(side, checkout, file, mode, services, GROUPS, size)


def _bundled_tokenizer() -> Path:
    from hermes.config.paths import home
    from hermes.models.local.bundled import prepare

    return prepare(home())


def _portable_tokenizer(source: Path, target: Path) -> Path:
    """A copy that transformers 4 reads as well: the class that transformers 5 writes is unknown to it."""
    target.mkdir(exist_ok=True)
    for file in source.glob("*token*.json*"):
        shutil.copy(file, target)
    for file in source.glob("chat_template*"):
        shutil.copy(file, target)
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (target / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return target


def _markdown(comparisons: Sequence[Comparison]) -> str:
    lines = ["| file | mode | original | Hermes | |", "|---|---|---|---|---|"]
    for row in comparisons:
        reason = REASONS.get(row.file, "") if row.verdict == "only Hermes" else ""
        why = f": {reason or _short(row.why)}" if reason or row.why else ""
        lines.append(f"| {row.file} | {row.mode} | {row.original} | {row.hermes} | {row.verdict}{why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
