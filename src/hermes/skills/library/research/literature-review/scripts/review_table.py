#!/usr/bin/env python3
"""Keep the record of a literature review: papers found by queries, decisions, and tables made from them.

The record is one JSONL file: a line a paper, with the queries that gave it, the decision and the notes.
`add` reads the JSON of `arxiv_search.py search --json`, `decide` records what a person decided, `report`
prints the counts of every stage and a Markdown or LaTeX table. `find` looks into all records below a folder,
so that a later review starts from the earlier ones, and `cited` compares a draft with the record. Nothing is
removed; a later decision about a paper replaces the earlier one. The script decides nothing itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DECISIONS = ("include", "context", "exclude")
NOTES = ("claim", "evidence", "weakness", "reason")
CITATION = re.compile(r"\\cite\w*\*?(?:\[[^\]]*\])*\{([^}]*)\}|\[@([^\]\s;]+)")
"""In LaTeX and in Markdown."""
ARXIV_ID = re.compile(r"(?<![\d.])\d{4}\.\d{4,5}(?![\d.]\d)")
Record = dict[str, Any]


def read_record(path: Path) -> dict[str, Record]:
    if not path.exists():
        return {}
    rows: dict[str, Record] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            rows[row["id"]] = row
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"error: {path}:{number} is not a line of a review ({error})") from error
    return rows


def write_record(path: Path, rows: dict[str, Record]) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    draft.write_text("".join(json.dumps(row) + "\n" for row in rows.values()), encoding="utf-8")
    draft.replace(path)


def add(path: Path, query: str, text: str) -> str:
    """Adds the papers of one search. Papers that are there already get the query as well."""
    try:
        result = json.loads(text)
        papers, total = result["papers"], int(result["total"])
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"error: stdin is not the JSON of a search ({error})") from error
    rows = read_record(path)
    fresh = 0
    for paper in papers:
        key = re.sub(r"v\d+\Z", "", paper["id"])
        if key not in rows:
            fresh += 1
            metadata = {name: paper.get(name, "") for name in ("title", "authors", "published", "abstract")}
            rows[key] = {"id": key, "version": paper["id"], **metadata, "queries": [], "decision": ""}
        if query not in rows[key]["queries"]:
            rows[key]["queries"].append(query)
    write_record(path, rows)
    return f"{len(papers)} of {total} read, {fresh} new, {len(rows)} in the review"


def decide(path: Path, identifier: str, decision: str, notes: dict[str, str]) -> str:
    rows = read_record(path)
    if identifier not in rows:
        raise SystemExit(f"error: {identifier} is not in {path}; add it by a search first")
    if decision == "exclude" and not notes.get("reason"):
        raise SystemExit("error: an excluded paper needs --reason, so that the choice can be checked")
    rows[identifier] |= {"decision": decision, **{key: note for key, note in notes.items() if note}}
    write_record(path, rows)
    return f"{identifier}: {decision}"


def report(path: Path, form: str) -> str:
    rows = list(read_record(path).values())
    if form == "counts":
        return counts(rows)
    chosen = sorted(
        (row for row in rows if row["decision"] == "include"), key=lambda row: row["published"], reverse=True
    )
    return markdown(chosen) if form == "markdown" else latex(chosen)


def counts(rows: Sequence[Record]) -> str:
    """How many papers are at every stage, how many only one query gave, and why papers were excluded."""
    stages = Counter(row["decision"] or "undecided" for row in rows)
    queries = Counter(query for row in rows for query in row["queries"])
    alone = Counter(row["queries"][0] for row in rows if len(row["queries"]) == 1)
    reasons = Counter(row.get("reason", "") for row in rows if row["decision"] == "exclude")
    lines = [f"papers: {len(rows)}"] + [
        f"  {stage}: {stages[stage]}" for stage in (*DECISIONS, "undecided") if stages[stage]
    ]
    lines += ["queries (papers, papers that no other query gave):"]
    lines += [f"  {queries[query]:4d} {alone[query]:4d}  {query}" for query in queries]
    lines += ["reasons to exclude:"] if reasons else []
    return "\n".join(lines + [f"  {number:4d}  {reason}" for reason, number in reasons.most_common()])


def find(folder: Path, words: Sequence[str]) -> str:
    """The records below the folder with the papers in which all the words occur; without words, all."""
    lines = []
    for path in sorted(folder.rglob("*.jsonl")):
        try:
            rows = read_record(path)
        except (SystemExit, OSError, ValueError):
            continue  # another program's file
        if not rows or not all("queries" in row and "decision" in row for row in rows.values()):
            continue
        included = sum(row["decision"] == "include" for row in rows.values())
        matches = [row for row in rows.values() if words and _mentions(row, words)]
        if matches or not words:
            lines.append(f"{path}: {len(rows)} papers, {included} included")
        for row in matches:
            note = row.get("claim") or row.get("reason") or ""
            lines.append(
                f"  {row['id']}  {row['decision'] or 'undecided'}  {row['title']}: {note}".rstrip(": ")
            )
    return "\n".join(lines) or f"no review below {folder} has that"


def _mentions(row: Record, words: Sequence[str]) -> bool:
    text = " ".join(str(row.get(name, "")) for name in ("id", "title", "abstract", *NOTES)).casefold()
    return all(word.casefold() in text for word in words)


def cited(path: Path, drafts: Sequence[Path]) -> tuple[str, bool]:
    """Compares the citations of a draft with the record; whether all that is cited was included."""
    rows = read_record(path)
    text = "\n".join(draft.read_text(encoding="utf-8") for draft in drafts if draft.suffix != ".bib")
    keys = {key.strip() for group in CITATION.findall(text) for key in "".join(group).split(",")}
    entries = "\n".join(draft.read_text(encoding="utf-8") for draft in drafts if draft.suffix == ".bib")
    for key, body in re.findall(r"@\w+\s*\{([^,\s]+),(.*?)\n\s*\}", entries, re.DOTALL):
        if key in keys and (identifier := ARXIV_ID.search(body)):
            keys = keys - {key} | {identifier[0]}
    keys |= set(ARXIV_ID.findall(text))
    decisions = {key: rows[key]["decision"] if key in rows else None for key in sorted(keys)}
    used = {"include", "context"}
    parts = {
        "cited and not in the record": [key for key, decision in decisions.items() if decision is None],
        "cited and not included": [
            key for key, decision in decisions.items() if decision is not None and decision not in used
        ],
        "included and not cited": [
            key for key, row in rows.items() if row["decision"] == "include" and key not in keys
        ],
    }
    lines = [f"{name}: {', '.join(values) or 'none'}" for name, values in parts.items()]
    lines.insert(0, f"cited and included: {sum(decision in used for decision in decisions.values())}")
    return "\n".join(lines), used >= set(decisions.values())


def cells(row: Record) -> list[str]:
    authors = row["authors"]
    name = authors[0].split()[-1] if authors else "?"
    return [f"{name}{' et al.' if len(authors) > 1 else ''}, {row['published'][:4]}", row["title"]]


def markdown(rows: Sequence[Record]) -> str:
    head = ["| paper | title | claim | evidence | weakness | id |", "|---|---|---|---|---|---|"]
    body = [
        [*cells(row), *(row.get(note, "") for note in NOTES[:3]), row.get("version", row["id"])]
        for row in rows
    ]
    return "\n".join(
        head + ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in body]
    )


def latex(rows: Sequence[Record]) -> str:
    """A booktabs table; the citation keys are arXiv ids, to be replaced by those of the .bib file."""
    lines = [
        r"\begin{tabular}{llp{4cm}p{4cm}}",
        r"\toprule",
        r"Work & Cite & Claim & Evidence \\",
        r"\midrule",
    ]
    for row in rows:
        parts = [cells(row)[0], row["id"], row.get("claim", ""), row.get("evidence", "")]
        escaped = [re.sub(r"([&%#_$])", r"\\\1", part) for part in parts]
        escaped[1] = rf"\cite{{{row['id']}}}"
        lines.append(" & ".join(escaped) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description="Keep the record of a literature review.")
    top.add_argument("--file", type=Path, default=Path("review.jsonl"), help="the record (review.jsonl)")
    commands = top.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add", help="add the papers of `arxiv_search.py search --json` from stdin")
    adding.add_argument("--query", required=True, help="the query, word for word")
    deciding = commands.add_parser("decide", help="record a decision about a paper")
    deciding.add_argument("id")
    deciding.add_argument("decision", choices=DECISIONS)
    for note in NOTES:
        deciding.add_argument(f"--{note}", default="")
    reporting = commands.add_parser("report", help="counts, or a table of the included papers")
    reporting.add_argument("--form", choices=("counts", "markdown", "latex"), default="counts")
    finding = commands.add_parser("find", help="papers of all reviews below a folder, by words")
    finding.add_argument("words", nargs="*")
    finding.add_argument("--folder", type=Path, default=Path(), help="where to look (the current folder)")
    citing = commands.add_parser("cited", help="compare what a draft cites with the record")
    citing.add_argument("drafts", nargs="+", type=Path, metavar="FILE", help=".tex, .md and .bib files")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.command == "add":
        text = add(options.file, options.query, sys.stdin.read())
    elif options.command == "decide":
        notes = {note: getattr(options, note) for note in NOTES}
        text = decide(options.file, options.id, options.decision, notes)
    elif options.command == "find":
        text = find(options.folder, options.words)
    elif options.command == "cited":
        text, all_included = cited(options.file, options.drafts)
        sys.stdout.write(text + "\n")
        return 0 if all_included else 1
    else:
        text = report(options.file, options.form)
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
