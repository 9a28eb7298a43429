"""Writes the LaTeX project of a paper. The style is our own; a venue's style file takes its place by one
line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes.core import JSONObject
from hermes.errors import UsageError
from hermes.paper.bibliography import Reference, bibtex_file, find_references, used_papers
from hermes.paper.content import (
    ENVIRONMENT_TABLE,
    checklist,
    compute_table,
    configuration_table,
    environment_table,
    results_table,
    write_curves,
)
from hermes.paper.latex import escape, number
from hermes.paper.record import PROJECT_FILE, RunRecord, reward_interval


@dataclass(frozen=True, slots=True)
class VenueLayout:
    """The page of a venue, as far as its call describes it, without its style file."""

    name: str
    options: str
    """Of the class `article`."""
    geometry: str
    style_file: str
    """The venue's own file, which the authors fetch."""


VENUES = {
    "neurips": VenueLayout("NeurIPS", "10pt", "text={5.5in,9in},centering", "neurips.sty"),
    "icml": VenueLayout("ICML", "10pt,twocolumn", "text={6.75in,9in},centering,columnsep=0.25in", "icml.sty"),
    "iclr": VenueLayout("ICLR", "10pt", "text={5.5in,9in},centering", "iclr_conference.sty"),
}


@dataclass(frozen=True, slots=True)
class PaperOptions:
    venue: str = "neurips"
    title: str | None = None
    authors: tuple[str, ...] = ()
    cited: tuple[str, ...] = ()
    """arXiv ids beyond those of the methods that the record shows."""
    offline: bool = False


def write_project(folder: Path, records: Sequence[RunRecord], options: PaperOptions) -> list[str]:
    """Writes the project into a folder that is new or empty; returns the paths of its files."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty.", "Choose another --out: nothing is overwritten.")
    layout = VENUES[options.venue]
    for name in ("tables", "figures"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    figures = write_curves(records, folder)
    ids = list(dict.fromkeys([*used_papers(records), *options.cited]))
    references = find_references(ids, offline=options.offline)
    files = {
        "tables/results.tex": results_table(records),
        "tables/configuration.tex": configuration_table(records[0]),
        ENVIRONMENT_TABLE: environment_table(records),
        "tables/compute.tex": compute_table(records),
        "checklist.tex": checklist(records),
        "references.bib": bibtex_file(references),
        "hermes-paper.sty": _STYLE.replace("GEOMETRY", layout.geometry),
        "main.tex": _main(records, layout, options, figures, references),
        "README.md": _readme(layout),
        PROJECT_FILE: json.dumps(_project(records, options), indent=1) + "\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _project(records: Sequence[RunRecord], options: PaperOptions) -> JSONObject:
    runs: list[JSONObject] = [
        {"id": record.run_id, "folder": str(record.folder), "metrics_sha256": record.metrics_sha256}
        for record in records
    ]
    return {"format": 1, "venue": options.venue, "runs": runs}


def _main(
    records: Sequence[RunRecord],
    layout: VenueLayout,
    options: PaperOptions,
    figures: Sequence[tuple[str, str]],
    references: Sequence[Reference],
) -> str:
    record = records[0]
    environment = record.value("run.environment")
    model = str(record.value("run.model", "tinker.base_model", "settings.base_model") or "a model")
    title = options.title or (f"Training {model} on {environment}" if environment else f"Training {model}")
    authors = r" \and ".join(escape(author) for author in options.authors) or "Anonymous authors"
    keys = [reference.key for reference in references if reference.key]
    cited = rf" The methods are described in \cite{{{','.join(keys)}}}." if keys else ""
    bibliography = "\\bibliographystyle{plain}\n\\bibliography{references}\n" if keys else ""
    return _MAIN.format(
        options=layout.options,
        style_file=layout.style_file,
        title=escape(title),
        authors=authors,
        model=escape(model),
        environment=f", the environment \\texttt{{{escape(str(environment))}}}" if environment else "",
        abstract=_abstract(records),
        cited=cited,
        figures="\n".join(_figure(path, caption) for path, caption in figures),
        bibliography=bibliography,
    )


def _abstract(records: Sequence[RunRecord]) -> str:
    """Sentences whose numbers come from the record."""
    record = records[0]
    first, last = reward_interval(record.rows[0]), reward_interval(record.rows[-1])
    sentence = f"The record holds {record.steps} training steps of run \\texttt{{{escape(record.run_id)}}}."
    if first is not None and last is not None:
        means = f"{number(first.mean)} in the first step and {number(last.mean)} in the last"
        sentence += f" The mean reward was {means}."
    return sentence


def _figure(path: str, caption: str) -> str:
    label = Path(path).stem
    return (
        "\\begin{figure}[t]\n\\centering\n"
        f"\\input{{{path}}}\n\\caption{{{caption}}}\\label{{fig:{label}}}\n\\end{{figure}}\n"
    )


def _readme(layout: VenueLayout) -> str:
    return _README.format(venue=layout.name, style_file=layout.style_file)


_README = """# A paper from the record of a run

Compile: `tectonic main.tex`, or `latexmk -pdf main.tex`. On Debian the packages are
texlive-latex-recommended, texlive-pictures and latexmk.
Check that every number in the text is in the record: `hermes paper check .`

`hermes-paper.sty` is a plain style of our own in the proportions of {venue}. For a submission fetch
{venue}'s own style file of the year, put it beside main.tex (it is called like `{style_file}`), and
replace the line `\\usepackage{{hermes-paper}}` by the one its instructions give; keep the packages that the
style file does not load, and the commands `\\todo` and `\\fitted`.

Files in tables/ and figures/ are written from the record: write them anew instead of editing them.
Passages that the record cannot answer are marked `\\todo`.
A number of yours that is not from a run (a year, a number from another paper) is excepted from the check
by `% number: SOURCE` at the end of its line.
"""

_STYLE = r"""% A plain style for papers written by Hermes. It is not the style file of a venue.
\NeedsTeXFormat{LaTeX2e}
\ProvidesPackage{hermes-paper}
\RequirePackage[utf8]{inputenc}
\RequirePackage[T1]{fontenc}
\RequirePackage[GEOMETRY]{geometry}
\RequirePackage{booktabs}
\RequirePackage{xcolor}
\RequirePackage{pgfplots}
\pgfplotsset{compat=1.16}
\usepgfplotslibrary{fillbetween}
\RequirePackage[hidelinks]{hyperref}
\newcommand{\todo}[1]{\textcolor{red!70!black}{[to do: #1]}}
\newcommand{\fitted}[1]{\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{#1}}
\setlength{\belowcaptionskip}{4pt}
\setlength{\parindent}{0pt}
\setlength{\parskip}{0.5em}
"""

_MAIN = r"""\documentclass[{options}]{{article}}
% For a submission replace the next line by the venue's own style ({style_file}); see README.md.
\usepackage{{hermes-paper}}

\title{{{title}}}
\author{{{authors}}}
\date{{}}

\begin{{document}}
\maketitle

\begin{{abstract}}
\todo{{problem and idea in two sentences}} {abstract}
\end{{abstract}}

\section{{Introduction}}
\todo{{what is asked, why it matters, what is new}}

\section{{Related work}}
\todo{{a row for each line of work: what it does, how this differs}}{cited}

\section{{Method}}
The base model is \texttt{{{model}}}{environment}.
Table~\ref{{tab:configuration}} has the settings. \todo{{the method}}

\section{{Experiments}}
Table~\ref{{tab:results}} has the results. \todo{{what they show, and what they do not}}

\input{{tables/results}}
{figures}
\section{{Limitations}}
\todo{{limits of the evidence}}

{bibliography}
\clearpage
\appendix
\section{{Configuration}}
\input{{tables/configuration}}

\section{{Environment and compute}}
\input{{tables/environment}}
\input{{tables/compute}}

\section{{Reproducibility checklist}}
\input{{checklist}}

\end{{document}}
"""
