"""The pages of the documentation, and what tests read out of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])
WRITTEN = [
    page
    for page in PAGES
    if ROOT / "docs" in page.parents
    and "results" not in page.parts
    and not page.read_text("utf-8").startswith("<!-- Written by")
]
"""Pages of the documentation that are not generated."""
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(language, text) for language, text in _FENCE.findall(page.read_text("utf-8"))]


def spans(page: Path) -> list[str]:
    """What stands in the text as code."""
    return _SPAN.findall(_FENCE.sub("", page.read_text("utf-8")))


def shell_lines(block: Block) -> list[str]:
    """The command lines of a shell block, each in one piece."""
    lines = re.sub(r"\s*\\\n\s*", " ", block.text).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def indented_blocks(page: Path) -> list[str]:
    """The first lines of blocks of code that are indented instead of fenced."""
    lines = _FENCE.sub("", page.read_text("utf-8")).splitlines()
    first_lines = []
    in_list = False
    for before, line in zip(["", *lines], lines, strict=False):
        in_list = bool(re.match(r"\s*([-*]|\d+\.) ", line)) or (in_list and (not line or line[0] == " "))
        if re.match(r" {4}\S", line) and not before.strip() and not in_list:
            first_lines.append(line)
    return first_lines


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
