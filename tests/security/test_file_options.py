"""Every option and argument of the command line that names a file or folder to read is known to be tried.

The tree of commands is walked. What names a file has rows in the table of damaged files, that of
test_strangers_files, or stands here with the reason why none is needed; a test fails for a new option that is
in neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch

import click
import pytest

from hermes.cli.main import cli
from tests.security.strangers_files import KINDS

_WORDS = re.compile(
    r"file|path|folder|\bdir|config|prompts|dataset|template|schema|weights|adapter|tokenizer|source|input"
    r"|fragment|reward|policy|preferences|replay|start$|reference|base.model|^model$|environment$|settings$"
    r"|targets|^argument$|\.(?:json|yaml|py)|FILE|DIR|PATH|FOLDER|WEIGHTS",
)
"""What the name, the metavar, or the help of a text option that names a file says."""

TASKS = ("tasks, JSONL", "tasks, JSON", "tasks, CSV", "tasks, Parquet")
MODEL = ("model's config", "safetensors", "index", "GGUF", "tokenizer", "tokenizer's config", "chat template")
ADAPTER = ("adapter", "adapter's config")
PREFERENCES = ("preference pairs",)
RUN_FILE = ("configuration of a run",)
HARBOR = tuple(name for name in KINDS if "of a Harbor task" in name or name == "Harbor task")
JOBS = ("trial of a Harbor job", "trajectory of a Harbor job")
SESSIONS = tuple(name for name in KINDS if name.startswith("session of "))

READ: dict[str, tuple[str, ...]] = {
    "hermes --fragment": ("part of a question",),
    "hermes --schema": ("schema of an answer",),
    "hermes --template": ("prompt template",),
    "batch --dataset-file": TASKS,
    "bench --dataset-file": TASKS,
    "trajectories score --dataset-file": TASKS,
    "batch --resume": ("batch run", "journal of a batch"),
    "batch status run_name": ("batch run", "journal of a batch"),
    "batch * --output-dir": ("batch run", "journal of a batch"),
    "b* --output-dir": ("batch run", "journal of a batch"),
    "b* --run-name": ("batch run", "journal of a batch"),
    "batch --config": ("flags of batch",),
    "batch --prefill-messages-file": ("prefilled messages",),
    "compress argument": ("trajectories to compress",),
    "compress --input": ("trajectories to compress",),
    "compress --config": ("configuration of compress",),
    "compress --tokenizer": ("tokenizer", "tokenizer's config"),
    "* --harbor": HARBOR,
    "improve --text": ("text to improve",),
    "engine import folder": ADAPTER,
    "engine serve --policy": ADAPTER,
    "engine * --model": MODEL,
    "env * settings": ("configuration of an environment", "tasks of an environment"),
    "export --decontaminate": ("evaluation set",),
    "import files": ("import, JSONL", "import, JSON", "import, Parquet", "import, session", *SESSIONS, *JOBS),
    "reward score targets": ("rows to score", "rows to score, Parquet"),
    "reward s* name": ("reward model",),
    "rl check --prompts": ("tasks of a reward function", *TASKS),
    "rl preflight --prompts": ("tasks of a reward function", *TASKS),
    "rl start --prompts": ("tasks of a reward function", *TASKS),
    "rl start --config": RUN_FILE,
    "rl plan --model": MODEL,
    "skills install source": ("skill, tar", "skill, zip", "skill"),
    "skills view path": ("file of a skill",),
    "skills view --file": ("file of a skill",),
    "store salvage target": ("database to rescue",),
    "train * --base-model": MODEL,
    "improve --base-model": MODEL,
    "improve --tasks": TASKS,
    "skills trial --tasks": TASKS,
    "improve --proposals": ("proposed texts",),
    "policy promote --base-model": MODEL,
    "train * --start": ADAPTER,
    "train * --reference": ADAPTER,
    "train sft files": ("token ids for SFT", "text for SFT"),
    "train * --replay": ("token ids for SFT", "text for SFT"),
    "train * files": PREFERENCES,
    "train * --eval-file": PREFERENCES,
    "train rlhf --preferences": PREFERENCES,
    "train rlhf --prompts": ("tasks of a reward function", *TASKS),
    "train rlhf --reward-model": ("reward model",),
    "train * --config": RUN_FILE,
    "train * --eval-config": ("configuration of an environment",),
    "train * --run-dir": ("RL run", "status of an RL run", "checkpoints of a run", "metrics of a run"),
}
"""Command and option, as a pattern → the rows of KINDS that damage what it names."""

CODE = "code that runs as this user; test_strangers_code has what it may do"
WRITTEN = "it is written, and what is there already is refused or replaced"
SEARCHED = "a folder in which files are searched; each file has its own reader"
OURS = "a folder of ours, whose files have rows of their own"
NO_FILE = "no file: a name, an address, a text, or an id in the store"

EXEMPT: dict[str, str] = {
    "* --reward": CODE,
    "* --true-reward": CODE,
    "* --eval-environment": CODE,
    "env * environment": CODE,
    "rl * --env": CODE,
    "improve --env": CODE,
    "skills trial --env": CODE,
    "improve --agent*": "a command that the person runs, in a sandbox",
    "env * --dir": SEARCHED,
    "env list folders": SEARCHED,
    "batch --env.wheels": "packages that a person gives; pip installs them inside a sandbox only",
    "env verifiers install *": "an installation that a person asks for; a package is code that is trusted",
    "* --output": WRITTEN,
    "rl weights --into": WRITTEN,
    "store backup target": WRITTEN,
    "train * --eval-folder": "written by the environment's own evaluation",
    "engine fleet --folder": WRITTEN,
    "engine serve --state-dir": OURS,
    "api --state-dir": OURS,
    "hermes --workspace": "the agent works in it; its tools have limits of their own",
    "* --workspace": "the agent works in it; its tools have limits of their own",
    "improve --reward-model": NO_FILE,
    "skills trial --reward-model": NO_FILE,
    "rate auto --reward-model": NO_FILE,
    "rl weights --format": NO_FILE,
    "import --format": NO_FILE,
    "export --base-model": NO_FILE,
    "skills learn reference": NO_FILE,
    "* --policy-name": NO_FILE,
    "* --source": NO_FILE,
    "* --system": NO_FILE,
    "* --model": NO_FILE,
    "* --title": NO_FILE,
    "* --wandb-group": NO_FILE,
    "* --name": NO_FILE,
    "* --toolsets": NO_FILE,
    "* --project": NO_FILE,
    "* --sink": NO_FILE,
    "* --lora-targets": NO_FILE,
    "* --distribution": NO_FILE,
    "* --run": NO_FILE,
    "* --text": NO_FILE,
}
"""Command and option, as a pattern → why it has no row."""


def parameters(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Parameter]]:
    """Every parameter of every command, groups included, with its name such as `batch --reward`."""
    for parameter in command.params:
        names = [name for name in parameter.opts if name.startswith("--")] or [parameter.name or ""]
        yield f"{' '.join(path) or 'hermes'} {names[0]}", parameter
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            yield from parameters(subcommand, (*path, name))


def may_name_a_file(parameter: click.Parameter) -> bool:
    if isinstance(parameter.type, click.Path | click.File):
        return True
    if getattr(parameter, "is_flag", False) or isinstance(
        parameter.type, click.Choice | click.IntRange | click.FloatRange
    ):
        return False
    if parameter.type in (click.INT, click.FLOAT, click.BOOL):
        return False
    texts = [parameter.name or "", parameter.metavar or ""]
    help_text = getattr(parameter, "help", None) or ""
    return any(_WORDS.search(text) for text in texts) or bool(
        re.search(r"\b(?:file|folder|directory|path)s?\b|\.py\b|JSONL|YAML", help_text, re.IGNORECASE)
    )


def unlisted(command: click.Command) -> list[str]:
    known = (*READ, *EXEMPT)
    return [
        name
        for name, parameter in parameters(command)
        if may_name_a_file(parameter) and not any(fnmatch(name, pattern) for pattern in known)
    ]


def test_every_option_that_names_a_file_is_in_the_table_or_exempt() -> None:
    assert unlisted(cli) == [], (
        "add its reader to test_strangers_files.KINDS and a line to READ, or to EXEMPT"
    )


def test_every_pattern_stands_for_an_option_and_every_row_is_there() -> None:
    names = [name for name, _ in parameters(cli)]
    idle = [pattern for pattern in (*READ, *EXEMPT) if not any(fnmatch(name, pattern) for name in names)]
    assert idle == [], "remove what no option has any more"
    assert {row for rows in READ.values() for row in rows} <= KINDS.keys()


@pytest.mark.parametrize(
    "option",
    [
        click.Option(["--recipe-file"]),
        click.Option(["--lessons"], type=click.Path()),
        click.Option(["--lessons"], type=click.File()),
        click.Option(["--lessons"], metavar="FILE"),
        click.Option(["--lessons"], help="A JSONL file of lessons."),
        click.Option(["--lessons"], metavar="NAME|DIR"),
        click.Argument(["dataset"]),
        click.Option(["--config"]),
        click.Option(["--prompts"]),
    ],
)
def test_a_new_option_that_names_a_file_is_noticed(option: click.Parameter) -> None:
    command = click.Group("hermes", commands={"new": click.Command("new", params=[option])})
    assert len(unlisted(command)) == 1
