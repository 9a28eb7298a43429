"""The pages of metrics, environment variables and file formats."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HOME_FILES = {
    "config.yaml": "Settings. `hermes config edit` checks it before it is saved.",
    ".env": "Keys, one `NAME=value` a line, mode 0600.",
    "hermes.db": "The store: SQLite in WAL mode. Its tables are below.",
    "exports.jsonl": "Where each export went, so that deleting can name the files.",
    "models/": "Models that were made ready for use.",
    "engine/": "Checkpoints of the local engine.",
    "runs/": "Training and RL runs, a folder each.",
    "policies/": "Policies that `hermes improve` trained and compared.",
    "environments/": "Your environments; `hermes env list` finds them.",
    "skills/": "Skills that you installed or wrote.",
    "templates/": "Prompt templates.",
    "workspaces/": "Folders in which agents worked.",
    "verifiers/": "The interpreter of verifiers environments.",
    "cache/": "Summaries of the compressor, and other things that can be made again.",
    "history": "What you typed in chats.",
    "logs/": "Logs.",
}
RUN_FILES = {
    "config.yaml": "Every field of the run, with its value.",
    "status.json": "The state of the run and of its processes.",
    "training.json": "The trainer's state: step, checkpoints, leases. It resumes from this.",
    "metrics.jsonl": "One object a step: `step`, `time_s` and [metrics](metrics.md).",
    "tokens.json": "Tokens that the Tinker service sampled and trained.",
    "wandb.json": "The address of the run at W&B, or why it is not there.",
}
BATCH_FILES = {
    "run.json": "What the run is: dataset, model, settings. It is compared when the run continues.",
    "trajectories.jsonl": "The rows.",
    "parquet/": "The same rows as Parquet.",
    "statistics.json": "Counts, rates, tokens, cost, rewards.",
    "README.md": "A dataset card.",
}


def metrics() -> Iterator[str]:
    from metric_table import SECTIONS

    from hermes.engine.server.tinker import service as engine
    from hermes.rollouts.core import metrics as api

    yield "# Metrics\n"
    yield "Every metric that Hermes writes, with its meaning. Trainers write them to `metrics.jsonl` in the"
    yield "run's folder, to the store, and to W&B, TensorBoard or trackio where you asked for that.\n"
    yield "```sh\nhermes rl results RUN --json\nhermes web\n```\n"
    yield "Which ones to look at: `reward/mean` should rise, `health/group_signal` should not be 0,"
    yield "`probe/followed` should be about 1. `train/loss` says nothing about progress in RL. A name in"
    yield "capitals stands for any name.\n"
    for heading, entries in SECTIONS.items():
        yield f"## {heading}\n"
        yield from _table(("metric", "meaning"), [(f"`{entry.name}`", entry.meaning) for entry in entries])
    for heading, module in (("Engine: `/metrics`", engine), ("Trajectory API: `/metrics`", api)):
        yield f"## {heading}\n"
        yield f"For Prometheus; every name begins with `{module.PREFIX}`.\n"
        yield from _table(("metric", "meaning"), [(f"`{name}`", text) for name, text in module.HELP.items()])


def variables() -> Iterator[str]:
    from environment_variables import SECTIONS

    yield "# Environment variables\n"
    yield "Every variable that Hermes reads or sets. Store a key so that every command finds it:\n"
    yield "```sh\nhermes config set OPENROUTER_API_KEY\n```\n"
    yield "A variable of the environment wins over one that is stored, also an empty one. Every"
    yield "[setting](settings.md) has a variable too: `HERMES_`, then its key in capitals, with two"
    yield "underscores for a dot. `limits.max_turns` is `HERMES_LIMITS__MAX_TURNS`.\n"
    for heading, entries in SECTIONS.items():
        yield f"## {heading}\n"
        yield from _table(("variable", "meaning"), [(f"`{entry.name}`", entry.meaning) for entry in entries])


def files() -> Iterator[str]:
    from hermes.data.formats.batch import FORMAT as BATCH
    from hermes.data.formats.registry import FORMATS

    yield "# File formats\n"
    yield "The files that Hermes writes, and the columns of every format that it exports.\n"
    yield "```sh\nhermes config path\nhermes export --formats\n```\n"
    for heading, entries in (
        ("The home, `~/.hermes` or `HERMES_HOME`", HOME_FILES),
        ("A run of training or RL", RUN_FILES),
        ("A batch run, `data/NAME`", BATCH_FILES),
    ):
        yield f"## {heading}\n"
        yield from _table(("file", "content"), [(f"`{name}`", text) for name, text in entries.items()])
    yield "## Rows of a batch run\n"
    yield from _columns(BATCH.columns)
    yield "## Export formats\n"
    yield "What each format keeps and loses, and which trainer reads it: [formats](../formats.md).\n"
    for form in FORMATS.values():
        yield f"### {form.name}\n"
        yield f"{form.summary}. Version {form.version}.\n"
        yield from _columns(form.columns)
    yield "## Tables of the store\n"
    yield "For reading; write through `hermes.store.Writer`, which holds the lock.\n"
    yield from _table(("table", "columns"), _store_tables())


def _columns(columns: Sequence[Any]) -> Iterator[str]:
    rows = [(f"`{column.name}`", column.kind, column.meaning) for column in columns]
    yield from _table(("column", "type", "meaning"), rows)


def _store_tables() -> list[tuple[str, str]]:
    from hermes.store.migrations import migrate

    connection = sqlite3.connect(":memory:")
    migrate(connection, None)
    names = [
        name
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        )
        if not name.startswith("message_search_")  # what the full-text index keeps for itself
    ]
    return [(f"`{name}`", ", ".join(_column_names(connection, name))) for name in names]


def _column_names(connection: sqlite3.Connection, table: str) -> list[str]:
    return [f"`{row[1]}`" for row in connection.execute(f"PRAGMA table_info({table})")]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    yield from ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    yield ""


def file_names() -> Mapping[str, str]:
    """Every file that the page names, with its meaning."""
    return HOME_FILES | RUN_FILES | BATCH_FILES
