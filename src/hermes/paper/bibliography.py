"""Entries of the bibliography, by the script of the bundled skill `arxiv`: from its cache, or from arXiv.

An entry that cannot be had is not invented: references.bib says so in a comment, and the text does not cite
it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from hermes.paper.record import RunRecord
from hermes.skills.catalogue import bundled_skills

_SCRIPT = "scripts/arxiv_search.py"
_TIMEOUT_S = 60
_METHODS = {
    "lora": ("2106.09685", "rank"),
    "grpo": ("2402.03300", "group_size"),
    "ppo": ("1707.06347", "ppo"),
    "dpo": ("2305.18290", "dpo"),
    "kto": ("2402.01306", "kto"),
    "smollm2": ("2502.02737", "smollm2"),
}
"""Method → arXiv id of its paper, and the word in the configuration that shows its use."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One paper to cite. `entry` is its BibTeX, or None with the reason in `problem`."""

    arxiv_id: str
    entry: str | None
    problem: str = ""

    @property
    def key(self) -> str | None:
        match = re.match(r"@\w+\{([^,]+),", self.entry or "")
        return match[1] if match else None


def used_papers(records: Sequence[RunRecord]) -> list[str]:
    """arXiv ids of the papers of the methods that the configuration shows."""
    text = " ".join(f"{name}={value}" for record in records for name, value in record.config.items()).lower()
    return [arxiv_id for arxiv_id, word in _METHODS.values() if word in text]


def find_references(arxiv_ids: Sequence[str], *, offline: bool) -> list[Reference]:
    """One reference for each id; after the first failure to reach arXiv only the cache is used."""
    references: list[Reference] = []
    for arxiv_id in arxiv_ids:
        reference = _lookup(arxiv_id, offline=True)
        if reference.entry is None and not offline:
            reference = _lookup(arxiv_id, offline=False)
            offline = reference.entry is None
        references.append(reference)
    return references


def bibtex_file(references: Sequence[Reference]) -> str:
    parts = ["% Entries by the script of the skill arxiv: hermes skills view arxiv"]
    for reference in references:
        if reference.entry is not None:
            parts.append(reference.entry)
        else:
            parts.append(f"% arXiv {reference.arxiv_id} has no entry: {reference.problem}")
    return "\n\n".join(parts) + "\n"


def _lookup(arxiv_id: str, *, offline: bool) -> Reference:
    script = bundled_skills().find("arxiv").directory / _SCRIPT
    if not script.is_file():
        return Reference(arxiv_id, None, "the skill arxiv has no script")
    command = [sys.executable, str(script), "bibtex", arxiv_id, "--retries", "0", "--timeout", "15"]
    command += ["--offline"] if offline else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Reference(arxiv_id, None, f"no answer within {_TIMEOUT_S} s")
    if done.returncode:
        reason = " ".join(done.stderr.split())[:200]
        return Reference(arxiv_id, None, reason)
    return Reference(arxiv_id, done.stdout.strip())
