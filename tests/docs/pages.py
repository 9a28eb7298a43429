"""The pages of the documentation, and what tests read out of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"(?<!`)`(hermes [^`\n]+)`(?!`)")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Command:
    """A command line of a page."""

    page: Path
    text: str
    is_mention: bool
    """It stands in the text, where an option may be named without its value."""


def commands(page: Path) -> Iterator[Command]:
    """Command lines that start with `hermes`: in shell blocks, and as code in the text."""
    text = page.read_text("utf-8")
    for language, block in _FENCE.findall(text):
        if language in ("sh", "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                if re.match(r"(?:[A-Z_]+=\S* )*hermes\b", line.strip()):
                    yield Command(page, line.strip(), is_mention=False)
    for span in _SPAN.findall(_FENCE.sub("", text)):
        yield Command(page, span, is_mention=True)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(language, text) for language, text in _FENCE.findall(page.read_text("utf-8"))]


def opening(page: Path) -> str:
    """The first paragraphs: what stands between the title and the first block, table or heading."""
    lines = page.read_text("utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("# "))
    paragraphs = []
    for line in lines[start + 1 :]:
        if line.startswith(("```", "|", "#", "<!--", "![")):
            break
        paragraphs.append(line)
    return " ".join(paragraphs)


def cells(page: Path) -> list[str]:
    """The cells of all tables."""
    rows = [line.strip() for line in _FENCE.sub("", page.read_text("utf-8")).splitlines()]
    rows = [row for row in rows if row.startswith("|") and not re.fullmatch(r"[|\-: ]+", row)]
    return [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row.strip("|")) if cell.strip()]


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text("utf-8")))
    return [first or second for first, second in _LINK.findall(text)]


def anchors(page: Path) -> set[str]:
    """The anchors that code hosts and the site give the headings of a page."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    names = set()
    for heading in _HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        names.add(re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-"))
    return names
