"""Builds vLLM's own parser of `vllm serve` and has it parse command lines, in a process of its own.

    python vllm_parser.py FOLDER < lines.json

FOLDER has the Python files of a vLLM release. Its compiled parts, and packages that need a GPU, are absent on
most machines; vLLM's documentation is built without them too. A module that cannot be found is replaced by an
empty one, and its name is printed. Every option comes from vLLM's code.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import io
import json
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

COMPILED = ("vllm._C", "vllm._moe_C", "vllm._rocm_C", "vllm._flashmla", "vllm.vllm_flash_attn")


class AbsentModule(types.ModuleType):
    """A module that is not there: it has every attribute, and none of them does anything."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


def build_parser(folder: Path) -> Any:
    """The module of the options has moved between releases; its function has kept its name."""
    files = (folder / "vllm" / "entrypoints").rglob("cli_args.py")
    (file,) = [file for file in files if "def make_arg_parser(" in file.read_text(encoding="utf-8")]
    arguments = importlib.import_module(".".join(file.relative_to(folder).with_suffix("").parts))
    flexible = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    return arguments.make_arg_parser(flexible(prog="vllm serve"))


def without_absent(work: Callable[[], Any]) -> tuple[Any, list[str]]:
    """The result of the work, and the names of the modules that had to be replaced for it."""
    absent: list[str] = []
    while True:
        try:
            return work(), absent
        except ModuleNotFoundError as error:
            missing = error.name or ""
            is_vllm = missing.partition(".")[0] == "vllm" and not missing.startswith(COMPILED)
            if not missing or missing in absent or is_vllm:
                raise
            absent.append(missing)
            sys.modules[missing] = AbsentModule(missing)


def parse(parser: Any, words: Sequence[str]) -> str | None:
    """What the parser refuses the words for; None: it takes them."""
    output = io.StringIO()
    with contextlib.redirect_stderr(output):
        try:
            parser.parse_args(list(words))
        except SystemExit:
            return output.getvalue().strip().splitlines()[-1]
    return None


def main() -> None:
    folder, lines = Path(sys.argv[1]), json.load(sys.stdin)
    sys.path.insert(0, str(folder))
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    with contextlib.redirect_stdout(sys.stderr):
        parser, absent = without_absent(lambda: build_parser(folder))
        options = sorted(option for action in parser._actions for option in action.option_strings)
        problems = [parse(parser, words) for words in lines]
    print(json.dumps({"options": options, "problems": problems, "absent": absent}))


if __name__ == "__main__":
    main()
