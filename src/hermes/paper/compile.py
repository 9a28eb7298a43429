"""Compiles a paper with what the machine has: tectonic, latexmk or pdflatex with bibtex."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from hermes.errors import HermesError

_TIMEOUT_S = 600
MAIN = "main"
_SAFE = ("-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape")


def compiler() -> str | None:
    """The name of the program that compiles; None: there is none."""
    return next((name for name in ("tectonic", "latexmk", "pdflatex") if shutil.which(name)), None)


def compile_pdf(folder: Path) -> Path:
    """The PDF of the project; raises `HermesError` with LaTeX's own message."""
    program = compiler()
    if program is None:
        raise HermesError(
            "there is no LaTeX on this machine.",
            "Install tectonic, or Debian's texlive-latex-recommended and texlive-pictures; "
            "or upload the folder to a service that compiles LaTeX.",
        )
    for command in _commands(
        program, has_references="\\bibliography{" in (folder / f"{MAIN}.tex").read_text("utf-8")
    ):
        _run(command, folder)
    return folder / f"{MAIN}.pdf"


def _commands(program: str, *, has_references: bool) -> list[list[str]]:
    if program == "tectonic":
        return [["tectonic", f"{MAIN}.tex"]]
    if program == "latexmk":
        return [
            [
                "latexmk",
                "-pdf",
                "-interaction=nonstopmode",
                "-halt-on-error",
                "-no-shell-escape",
                f"{MAIN}.tex",
            ]
        ]
    latex = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", f"{MAIN}.tex"]
    return [latex, *([["bibtex", MAIN]] if has_references else []), latex, latex]


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise HermesError(f"{command[0]} took more than {_TIMEOUT_S} s.", f"Run it in {folder}.") from error
    if done.returncode:
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        first = next((line for line in lines if line.startswith("!")), lines[-1] if lines else "no message")
        raise HermesError(f"{command[0]} failed: {first.lstrip('! ')}", f"See {folder / MAIN}.log")
