"""The parts of a paper that the record answers: tables, figures, configuration, machine, compute,
checklist."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from hermes.paper.latex import escape, number, plot, table
from hermes.paper.record import MeanInterval, RunRecord, reward_interval
from hermes.training.monitor.machine_card import MachineCard, this_machine

CURVES = (
    ("reward", "reward/mean", "mean reward"),
    ("loss", "train/loss", "loss"),
    ("entropy", "health/entropy", "entropy (nats)"),
)
"""Name of the figure, metric, label of its axis. A metric that no run has gives no figure."""
ENVIRONMENT_TABLE = "tables/environment.tex"
"""Its numbers are versions, not results."""
ENVIRONMENT_LABEL = "tab:environment"
_HIDDEN = ("wandb", "url", "path", "dir", "port", "token", "key", "probe", "created_at")
"""Parts of names of settings that belong to a machine or a person, not to a paper."""
_MAX_SETTINGS = 40


def results_table(records: Sequence[RunRecord]) -> str:
    """First and last reward of each run with 95 % intervals, its evaluations, and the mean over seeds."""
    rows = []
    for record in records:
        first, last = reward_interval(record.rows[0]), reward_interval(record.rows[-1])
        rows.append(
            (
                rf"\texttt{{{escape(record.run_id)}}}",
                str(record.seed) if record.seed is not None else "--",
                str(record.steps),
                _interval(first),
                _interval(last),
                _evaluation(record),
            )
        )
    last_means = [record.rows[-1]["reward/mean"] for record in records if "reward/mean" in record.rows[-1]]
    if len(last_means) > 1:
        spread = rf"{number(fmean(last_means))} $\pm$ {number(stdev(last_means))}"
        rows.append((r"\emph{all}", f"{len(last_means)} seeds", "", "", spread, ""))
    caption = (
        "Results. Brackets: 95\\,\\% normal interval over the rollouts of the step. Evaluation: held-out "
        "tasks, first and last measurement. A row \\emph{all} has mean and standard deviation over seeds."
    )
    heading = ("run", "seed", "steps", "reward, first step", "reward, last step", "evaluation")
    return table(caption, "tab:results", heading, rows, "llrlll")


def configuration_table(record: RunRecord) -> str:
    """The settings of the first run; names of machines, keys and addresses are left out."""
    settings = [
        (name, value)
        for name, value in sorted(record.config.items())
        if value is not None and not any(part in name.lower() for part in _HIDDEN) and len(str(value)) <= 60
    ]
    rows = [
        (rf"\texttt{{{escape(name)}}}", rf"\texttt{{{escape(str(value))}}}")
        for name, value in settings[:_MAX_SETTINGS]
    ]
    caption = f"Configuration of run \\texttt{{{escape(record.run_id)}}}, as it was resolved at its start."
    return table(caption, "tab:configuration", ("setting", "value"), rows or [("--", "--")], "ll")


def environment_table(records: Sequence[RunRecord]) -> str:
    """Machine and versions of the runs; of the machine that writes the paper where a run recorded none."""
    recorded = [(card, record.run_id) for record in records for card in record.machines]
    if not all(record.machines for record in records):
        rows = _card_rows(this_machine())
        caption = (
            "Environment in which this paper was written; the record does not name the machine of every run."
        )
        return table(caption, ENVIRONMENT_LABEL, ("part", "version"), rows, "ll")
    cards: list[MachineCard] = []
    for card, _ in recorded:
        if card not in cards:
            cards.append(card)
    rows = []
    for card in cards:
        if len(cards) > 1:
            run_ids = dict.fromkeys(run_id for machine, run_id in recorded if machine == card)
            rows.append(("trained", ", ".join(rf"\texttt{{{escape(run_id)}}}" for run_id in run_ids)))
        rows += _card_rows(card)
    caption = "Environment in which the trainer ran, from the record."
    return table(caption, ENVIRONMENT_LABEL, ("part", "version"), rows, "ll")


def _card_rows(card: MachineCard) -> list[tuple[str, str]]:
    versions = ", ".join(f"{package} {version}" for package, version in card.packages.items())
    return [
        ("Hermes", escape(card.hermes)),
        ("Python", escape(card.python)),
        ("system", escape(card.system)),
        ("packages", escape(versions or "none of those for training")),
    ]


def compute_table(records: Sequence[RunRecord]) -> str:
    rows = []
    for record in records:
        seconds = record.wall_clock_s
        rollouts = sum(row.get("data/rollouts", 0.0) for row in record.rows)
        rows.append(
            (
                rf"\texttt{{{escape(record.run_id)}}}",
                number(seconds / 3600) if seconds is not None else "--",
                number(rollouts) if rollouts else "--",
                *(str(record.tokens[name]) if name in record.tokens else "--" for name in _TOKENS),
            )
        )
    caption = "Compute used, from the record: hours of wall-clock time, rollouts, tokens."
    heading = ("run", "hours", "rollouts", *_TOKENS)
    return table(caption, "tab:compute", heading, rows, "lrrrrr")


_TOKENS = ("prefill", "sampled", "trained")


def write_curves(records: Sequence[RunRecord], folder: Path) -> list[tuple[str, str]]:
    """Writes the data files of the curves; (file of the figure, caption) for those that have data."""
    figures = []
    for name, metric, label in CURVES:
        files: dict[str, str] = {}
        for record in records:
            series = record.series(metric)
            if len(series) < 2:
                continue
            data_file = f"figures/{name}-{record.run_id}.dat"
            lines = ["step value", *(f"{step} {value:.6g}" for step, value in series)]
            (folder / data_file).write_text("\n".join(lines) + "\n", encoding="utf-8")
            files[escape(f"seed {record.seed}" if record.seed is not None else record.run_id)] = data_file
        if not files:
            continue
        band = _write_band(records[0], folder) if metric == "reward/mean" and len(files) == 1 else None
        text = plot(files, "step", label, band=band, legend=len(files) > 1)
        (folder / f"figures/{name}.tex").write_text(text, encoding="utf-8")
        shaded = " The band is the 95\\,\\% normal interval over the rollouts of a step." if band else ""
        figures.append((f"figures/{name}.tex", f"{label.capitalize()} by training step.{shaded}"))
    return figures


def _write_band(record: RunRecord, folder: Path) -> str | None:
    lines = ["step low high"]
    for row in record.rows:
        interval = reward_interval(row)
        if interval is None or interval.low is None or interval.high is None:
            return None
        lines.append(f"{int(row['step'])} {interval.low:.6g} {interval.high:.6g}")
    path = f"figures/reward-band-{record.run_id}.dat"
    (folder / path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def checklist(records: Sequence[RunRecord]) -> str:
    """Questions of reproducibility, answered from the record; the rest is left to the authors."""
    seeds = sorted({record.seed for record in records if record.seed is not None})
    has_interval = all((reward_interval(record.rows[-1]) or _NONE).low is not None for record in records)
    has_evaluation = all(record.evaluations for record in records)
    has_tokens = all(record.tokens for record in records)
    digests = ", ".join(rf"\texttt{{{record.metrics_sha256[:12]}}}" for record in records)
    answers = [
        ("Are all settings reported?", _yes(bool(records[0].config), "Table~\\ref{tab:configuration}")),
        ("Are the seeds reported?", _yes(bool(seeds), f"seeds {', '.join(map(str, seeds))}")),
        ("Is there more than one seed?", _yes(len(seeds) > 1, f"{len(seeds)} seeds")),
        ("Do results have intervals?", _yes(has_interval, "Table~\\ref{tab:results}")),
        ("Are results measured on held-out tasks?", _yes(has_evaluation, "Table~\\ref{tab:results}")),
        ("Is the compute reported?", _yes(True, "Table~\\ref{tab:compute}")),
        ("Are tokens counted?", _yes(has_tokens, "Table~\\ref{tab:compute}")),
        ("Are software versions reported?", _versions(records)),
        ("Can the numbers be traced to the record?", _yes(True, f"SHA-256 of the metrics: {digests}")),
        ("Did every run end by itself?", _ended(records)),
        ("Is the code public?", "\\todo{the record does not say}"),
        ("Are limitations and broader impact discussed?", "\\todo{the authors' part}"),
    ]
    items = [rf"\item[{question}] {answer}" for question, answer in answers]
    return "\n".join([r"\begin{description}", *items, r"\end{description}"]) + "\n"


_NONE = MeanInterval(0.0, None, None, None)


def _ended(records: Sequence[RunRecord]) -> str:
    states = sorted({record.state or "not recorded" for record in records})
    return _yes(states == ["completed"], "completed") if states == ["completed"] else f"{', '.join(states)}."


def _versions(records: Sequence[RunRecord]) -> str:
    if all(record.machines for record in records):
        return f"Yes: Table~\\ref{{{ENVIRONMENT_LABEL}}}."
    return f"No; Table~\\ref{{{ENVIRONMENT_LABEL}}} has those of the machine that wrote this paper."


def _yes(holds: bool, detail: str) -> str:
    return f"Yes: {detail}." if holds else "No, according to the record."


def _interval(interval: MeanInterval | None) -> str:
    if interval is None:
        return "--"
    if interval.low is None or interval.high is None:
        return number(interval.mean)
    return f"{number(interval.mean)} [{number(interval.low)}, {number(interval.high)}]"


def _evaluation(record: RunRecord) -> str:
    for name in ("eval/success_rate", "eval/percent_correct", "eval/reward_mean", "eval/loss"):
        values = [entry[name] for entry in record.evaluations if name in entry]
        if values:
            return f"{number(values[0])} $\\to$ {number(values[-1])}"
    return "--"
