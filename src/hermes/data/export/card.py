"""The dataset card of an export (README.md): what is in it, what was left out, how to load it. Only facts.

Nothing that identifies the machine goes in. The publisher of the data sets the licence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from hermes import __version__
from hermes.core import JSON, JSONObject
from hermes.data.formats.base import Format

_SIZES = (
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
)


def render(name: str, facts: JSONObject, form: Format) -> str:
    """`facts` as in the manifest."""
    parts = [
        front_matter(name, facts["rows"], ("hermes", "agent", "tool-use", "trajectories"), _configs(facts)),
        f"# {plain(name)}",
        f"Trajectories of an agent at work. Format: {form.name} (version {form.version}), {form.summary}.",
        "## What is in it",
        table(("file", "rows", "sha256"), [_file(file) for file in facts["files"]]),
        "## What was left out",
        _left_out(facts),
        "## Secrets and licence",
        _redaction(facts["redaction"]),
        "Licence: unknown: set it before publishing.",
        "## Columns",
        table(("column", "kind", "meaning"), [(f"`{c.name}`", c.kind, c.meaning) for c in form.columns]),
        "Kept exactly: " + "; ".join(form.keeps) + ". Not held: " + "; ".join(form.loses) + ".",
        "## How to load it",
        "```python\nfrom datasets import load_dataset\n\n"
        f'rows = load_dataset("{plain(name)}", split="train")\n```',
        f"Made by Hermes {__version__}; `{_manifest_name(facts)}` has the filters and hashes.",
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(
    name: str, rows: int, tags: Sequence[str], configs: Sequence[tuple[str, str]], *, licence: str = "unknown"
) -> str:
    """The YAML at the top; `configs` are pairs of split and files, empty if the hub is to find them."""
    size = next((label for limit, label in _SIZES if rows < limit), "n>10M")
    lines = [
        "---",
        f"pretty_name: {json.dumps(name)}",
        f"license: {licence}",
        "task_categories:",
        "- text-generation",
        "tags:",
        *(f"- {tag}" for tag in tags),
        "size_categories:",
        f"- {json.dumps(size)}",
    ]
    if configs:
        lines += ["configs:", "- config_name: default", "  data_files:"]
        lines += [f"  - split: {split}\n    path: {json.dumps(path)}" for split, path in configs]
    return "\n".join([*lines, "---"])


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; rows whose last cell is empty are left out."""
    lines = [heading, ["---"] * len(heading), *(row for row in rows if row[-1])]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def counts(title: str, numbers: Mapping[str, int], unit: str) -> str:
    return table((title, unit), [(code(name), str(count)) for name, count in numbers.items()])


def code(value: JSON) -> str:
    """As code, which Markdown does not interpret; empty for None."""
    if value is None:
        return ""
    return f"`{plain(str(value)).replace('`', chr(39)).replace('|', '/')}`"


def plain(text: str) -> str:
    return " ".join(text.split())


def _configs(facts: JSONObject) -> list[tuple[str, str]]:
    names = {"train": "train", "eval": "test"}
    return [(names[file.get("split", "train")], file["name"]) for file in facts["files"] if _is_file(file)]


def _is_file(file: JSONObject) -> bool:
    return bool(PurePath(file["name"]).suffix)


def _file(file: JSONObject) -> tuple[str, str, str]:
    return code(file["name"]), str(file["rows"]), code(file["sha256"])


def _left_out(facts: JSONObject) -> str:
    reasons = facts["left_out"]
    stages = [stage for stage in facts["filters"]["stages"] if "removed" in stage]
    filters = ", ".join(code(f"{stage['filter']}={stage['value']}") for stage in stages) or "none"
    text = f"Filters: {filters}."
    return f"{text}\n\n{counts('left out because', reasons, 'trajectories')}" if reasons else text


def _redaction(redaction: JSONObject) -> str:
    level = {"none": "nothing was redacted", "known": "known values were replaced"}
    summary = level.get(redaction["level"], "known values and values that look like secrets were replaced")
    hits = ", ".join(f"{rule} {count}" for rule, count in redaction["hits"].items()) or "none found"
    return f"Redaction: {summary} by `[REDACTED:…]` ({hits}). Secrets without a telling name or shape stay."


def _manifest_name(facts: JSONObject) -> str:
    first = facts["files"][0]["name"]
    stem = PurePath(first).stem if PurePath(first).suffix else first
    for side in (".train", ".eval"):
        stem = stem.removesuffix(side)
    return f"{stem}.manifest.json"
