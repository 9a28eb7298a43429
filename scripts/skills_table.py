"""Writes the table of docs/skills.md: the names of the seeds, the skill that answers each, and its check.

    python scripts/skills_table.py [--check | --from FILE]

Runs the full check of every skill, with its runnable blocks (it downloads packages to the cache of
HERMES_HOME), and replaces the text between the markers of the page. `--check` writes nothing and fails if
names and skills of the page are out of date. `--from` takes the result of
`python -m skills_check … --online --run --json` from a file; rows of other skills stay.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "skills.md"
BEGIN, END = "<!-- skills table: begin -->", "<!-- skills table: end -->"
NAMES = (
    "training/axolotl",
    "training/unsloth",
    "training/peft",
    "training/pytorch-fsdp",
    "training/trl-fine-tuning",
    "training/grpo-rl-training",
    "training/tinker",
    "training/torchtitan",
    "inference/vllm",
    "inference/sglang",
    "inference/llama-cpp",
    "inference/gguf",
    "inference/ollama",
    "inference/outlines",
    "inference/guidance",
    "inference/obliteratus",
    "cloud/modal",
    "cloud/ray",
    "evaluation/lm-evaluation-harness",
    "evaluation/inspect",
    "evaluation/hermes-bench",
    "data/huggingface-hub",
    "data/datasets",
    "data/vector-databases",
    "tracking/weights-and-biases",
    "tracking/trackio",
    "tracking/tensorboard",
    "environments/hermes-atropos-environments",
    "environments/verifiers",
    "environments/reward-functions",
    "environments/trajectory-curation",
    "research/arxiv",
    "research/research-paper-writing",
    "research/literature-review",
    "hermes/batch",
    "hermes/compress",
    "hermes/rl",
    "hermes/feedback",
    "hermes/troubleshooting",
)
"""The names under which users of hermes-agent and of our issues look for a skill."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare names and skills with the page")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="a result of the check")
    options = parser.parse_args()
    page = PAGE.read_text("utf-8")
    head, _, rest = page.partition(BEGIN)
    old, _, tail = rest.partition(END)
    if options.check:
        problems = [name for name, skill in answers().items() if f"| `{name}` | {skill} |" not in old]
        if problems:
            sys.stderr.write(f"docs/skills.md is out of date ({', '.join(problems)}): make skills-table\n")
        return 1 if problems else 0
    PAGE.write_text(f"{head}{BEGIN}\n{table(options.source, old)}{END}{tail}", "utf-8")
    return 0


def answers() -> dict[str, str]:
    """Name → category/name of the skill that answers, or 'none'."""
    from hermes.errors import HermesError
    from hermes.skills.catalogue import bundled_skills

    catalogue = bundled_skills()
    result = {}
    for name in NAMES:
        try:
            skill = catalogue.find(name.rpartition("/")[2])
            result[name] = f"{skill.category}/{skill.name}"
        except HermesError:
            result[name] = "none"
    return result


def table(source: Path | None, old: str) -> str:
    command = [sys.executable, "-m", "skills_check", "--all", "--online", "--run", "--json"]
    if source is None:
        text = subprocess.run(
            command, cwd=ROOT / "scripts", capture_output=True, text=True, check=False
        ).stdout
    else:
        text = source.read_text("utf-8")
    reports = {f"{entry.get('category')}/{entry['name']}": entry for entry in json.loads(text)}
    lines = [
        "| name | skill | package | pinned | newest | verified | result |",
        "|---|---|---|---|---|---|---|",
    ]
    kept = {line.split("`")[1]: line for line in old.splitlines() if line.startswith("| `")} if source else {}
    for name, skill in answers().items():
        row = _row(name, skill, reports.get(skill))
        lines.append(row if skill in reports else kept.get(name, row))
    return "\n".join(lines) + "\n"


def _row(name: str, skill: str, report: dict[str, object] | None) -> str:
    if report is None:
        result = "no skill" if skill == "none" else "not checked: the result does not have it"
        return f"| `{name}` | {skill} | | | | | {result} |"
    cells = [report[key] or "" for key in ("package", "pinned", "newest")] + [report["verified"] or "never"]
    unchecked = report["unchecked"]
    result = str(report["state"])
    if result == "ok":
        count = report["runs"]
        runs = f", {count} run{'s' if count != 1 else ''}" if count else ""
        result += f" ({report['blocks']} blocks, {report['lookups']} names{runs})"
    elif result == "not checked" and isinstance(unchecked, list):
        result += ": " + re.sub(r"[|\n]", " ", str(unchecked[0]))
    return f"| `{name}` | {skill} | {' | '.join(map(str, cells))} | {result} |"


if __name__ == "__main__":
    sys.exit(main())
