"""Writes the output blocks of the documentation: marked commands are executed, and their blocks rewritten.

    <!-- run: hermes export --formats -->
    ```text
    …what the command printed…
    ```

The marks of a page are executed in their order, in a folder of their own with an empty home; `sample.jsonl`
there has recorded trajectories. A mark without a block only prepares. Words before the colon are options:
`slow` needs the bundled model and is left out with `--cheap`, so no other mark may depend on it; `last=N`
keeps the last N lines; `status=N` expects another exit code than 0; `stderr` shows standard error too.

`python scripts/docs/outputs.py [--cheap] [--check] [PAGE…]`; with `--check` nothing is written, and the exit
code is 1 if a block has another shape than the output: the same lines, where ids, times and numbers do not
count.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAMPLE = Path(__file__).parent / "sample.jsonl"
_MARK = re.compile(
    r"^<!-- run(?P<options>(?: [\w=]+)*): (?P<command>.+?) -->\n(?P<block>```text\n.*?^```\n)?", re.S | re.M
)
_VARYING = (
    (re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b"), "ID"),
    (re.compile(r"\b[0-9a-f]{8,64}\b"), "HASH"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?Z?"), "TIME"),
    (re.compile(r"-?\d[\d,.]*(?:e[+-]\d+)?"), "N"),
    (re.compile(r"\s+"), " "),
)
_SIGN_OF_LIFE = re.compile(r"\(.* … N s\)")
"""A slow machine prints it, after the digits are replaced."""


@dataclass(frozen=True, slots=True)
class Mark:
    command: str
    options: tuple[str, ...]
    block: str | None
    """With its fences; None: the command only prepares."""
    place: tuple[int, int]
    """Of the block in the page's text."""

    @property
    def slow(self) -> bool:
        return "slow" in self.options

    def option(self, name: str, default: int) -> int:
        values = [option.partition("=")[2] for option in self.options if option.startswith(f"{name}=")]
        return int(values[0]) if values else default


def marks(text: str) -> list[Mark]:
    return [
        Mark(match["command"], tuple(match["options"].split()), match["block"], match.span("block"))
        for match in _MARK.finditer(text)
    ]


def marked_pages(root: Path = ROOT) -> list[Path]:
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return [page for page in pages if "<!-- run" in page.read_text("utf-8")]


def execute(page_marks: Sequence[Mark], cheap: bool) -> Iterator[tuple[Mark, str]]:
    """The marks that were executed, each with the text of its block. A command that fails ends it."""
    with tempfile.TemporaryDirectory(prefix="hermes-docs-") as folder:
        work, home = Path(folder) / "work", Path(folder) / "home"
        work.mkdir()
        home.mkdir()
        shutil.copy(SAMPLE, work)
        _share_models(home)
        for mark in page_marks:
            if not (cheap and mark.slow):
                yield mark, _output(mark, work, home)


def _share_models(home: Path) -> None:
    """The bundled model, where this machine has made it ready already: a link saves half a minute."""
    models = Path(os.environ.get("HERMES_HOME") or Path.home() / ".hermes") / "models"
    if models.is_dir():
        (home / "models").symlink_to(models)


def _output(mark: Mark, work: Path, home: Path) -> str:
    environ = {
        "HERMES_HOME": str(home),
        "HOME": str(work.parent),
        "USER": "you",
        "LOGNAME": "you",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "COLUMNS": "100",
    }
    done = subprocess.run(
        ["bash", "-c", mark.command],
        cwd=work,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if "stderr" in mark.options else subprocess.PIPE,
        text=True,
    )
    if done.returncode != mark.option("status", 0):
        raise SystemExit(f"{mark.command}\nexit code {done.returncode}\n{done.stdout}{done.stderr or ''}")
    text = done.stdout.replace(str(home), "~/.hermes").replace(str(work), ".").replace(str(work.parent), "~")
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return "\n".join(lines[-mark.option("last", len(lines) or 1) :])


def shape(text: str) -> list[str]:
    """The lines without what differs from one execution to the next."""
    for pattern, replacement in _VARYING:
        text = "\n".join(pattern.sub(replacement, line) for line in text.splitlines())
    return [line.strip() for line in text.splitlines() if not _SIGN_OF_LIFE.fullmatch(line.strip())]


def inner(block: str) -> str:
    """The text of a block without its fences."""
    return block.removeprefix("```text\n").removesuffix("```\n").rstrip("\n")


def rewritten(text: str, cheap: bool) -> str:
    """The page with its blocks as the commands print them now; a block that only varies stays as it is."""
    replacements = []
    for mark, output in execute(marks(text), cheap):
        if mark.block is not None and shape(inner(mark.block)) != shape(output):
            replacements.append((mark.place, f"```text\n{output}\n```\n"))
    for (start, end), block in reversed(replacements):
        text = text[:start] + block + text[end:]
    return text


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--cheap", action="store_true", help="leave commands out that need the model")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a block is out of date"
    )
    options = parser.parse_args(arguments)
    outdated = []
    for page in options.pages or marked_pages():
        text = page.read_text("utf-8")
        new = rewritten(text, options.cheap)
        if new != text:
            outdated.append(page)
            if not options.check:
                page.write_text(new, "utf-8")
    for page in outdated:
        sys.stdout.write(f"{'out of date' if options.check else 'written'}: {page}\n")
    return int(options.check and bool(outdated))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
