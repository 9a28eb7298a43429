"""Pieces of LaTeX from data: escaped text, numbers, tables and plots. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
}
_COLOURS = ("blue!70!black", "red!70!black", "green!50!black", "orange!80!black", "purple")


def escape(text: str) -> str:
    """Text that LaTeX prints as it is; characters outside ASCII that pdfLaTeX lacks become '?'."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return "".join(_SPECIAL.get(char, char if ord(char) < 0x250 else "?") for char in printable)


def number(value: float, digits: int = 3) -> str:
    """A number for a table: `digits` decimals, integers and very small ones as they are."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value)}"
    if abs(value) < 10**-digits:
        return f"{value:.2e}"
    return f"{value:.{digits}f}"


def table(
    caption: str, label: str, heading: Sequence[str], rows: Sequence[Sequence[str]], columns: str
) -> str:
    """A floating table that is shrunk where it is wider than its column; cells are LaTeX already."""
    lines = [
        r"\begin{table}[htbp]",
        r"\centering\small",
        rf"\caption{{{caption}}}\label{{{label}}}",
        r"\fitted{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(heading) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def plot(
    data: Mapping[str, str], x_label: str, y_label: str, *, band: str | None = None, legend: bool = True
) -> str:
    """A pgfplots figure: label → file with columns `step value`; `band` has `step low high`."""
    options = [
        r"width=0.95\linewidth",
        r"height=0.55\linewidth",
        f"xlabel={{{x_label}}}",
        f"ylabel={{{y_label}}}",
        "grid=major",
        "grid style={gray!20}",
        "tick label style={font=\\small}",
        "label style={font=\\small}",
        "legend style={font=\\scriptsize, draw=none, fill opacity=0.8, text opacity=1}",
        "legend pos=south east",
    ]
    lines = [r"\begin{tikzpicture}", r"\begin{axis}[", "  " + ",\n  ".join(options), "]"]
    if band is not None:
        lines += [
            rf"\addplot[name path=low, draw=none, forget plot] table[x=step, y=low] {{{band}}};",
            rf"\addplot[name path=high, draw=none, forget plot] table[x=step, y=high] {{{band}}};",
            r"\addplot[blue!15, forget plot] fill between[of=low and high];",
        ]
    for index, (label, path) in enumerate(data.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        lines.append(rf"\addplot[{colour}, thick] table[x=step, y=value] {{{path}}};")
        if legend:
            lines.append(rf"\addlegendentry{{{label}}}")
    return "\n".join([*lines, r"\end{axis}", r"\end{tikzpicture}"]) + "\n"
