"""`hermes compress`: fit trajectories to a token budget. Its options, and the YAML file that can hold them.

The file holds the flags by their names, or the sections of hermes-agent's trajectory_compression.yaml. Of
hermes-agent's keys, those with a meaning here are used and the other known ones are ignored; any other key
is an error. Permission to run a tokenizer's code is only taken from the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel, ConfigDict

from hermes.cli.model_options import fields_of_keys, model_options
from hermes.cli.options import json_option, stored_variables
from hermes.config.option import option
from hermes.data.compress.folding.plan import Strategy
from hermes.errors import UsageError

_HERMES_AGENT_KEYS = {
    "tokenizer.name": "tokenizer",
    "compression.target_max_tokens": "target_max_tokens",
    "compression.summary_target_tokens": "summary_target_tokens",
    "protected_turns.last_n_turns": "protect_last_turns",
    "summarization.model": "model",
    "summarization.base_url": "base_url",
    "processing.max_concurrent_requests": "concurrency",
}
_IGNORED_KEYS = {
    "tokenizer": ("trust_remote_code",),
    "protected_turns": ("first_system", "first_human", "first_gpt", "first_tool"),
    "summarization": ("api_key_env", "temperature", "max_retries", "retry_delay"),
    "output": ("add_summary_notice", "summary_notice_text", "output_suffix"),
    "processing": ("num_workers", "skip_under_target", "save_over_limit", "per_trajectory_timeout"),
    "metrics": ("enabled", "per_trajectory", "output_file"),
}


_FILE_HELP = "with these flags, or hermes-agent's trajectory_compression.yaml"


class CompressOptions(BaseModel):
    model_config = ConfigDict(frozen=True)

    argument: str | None = option(
        None,
        "JSONL file, folder, batch run, or a query such as 'run=my_run reward>=0.5'.",
        metavar="[FILE|DIR|RUN|QUERY]",
        argument=True,
    )
    input: str | None = option(
        None,
        "The same as the argument: JSONL file, folder, batch run, or stored trajectories"
        " such as 'run=my_run reward>=0.5'.",
        metavar="FILE|DIR|RUN|QUERY",
        hidden=True,
    )
    output: Path | None = option(None, "JSONL file to write.")
    target_max_tokens: int = option(8000, "Token budget of a row.", ge=1)
    tokenizer: str = option(
        "hermes/smollm2",
        "Tokenizer of the model to train: folder, hub name or tiktoken name.",
        metavar="NAME|DIR",
    )
    trust_remote_code: bool = option(False, "Allow a hub tokenizer to run its own code.")
    strategy: Strategy = option(
        Strategy.FOLD, "How old parts become short: by rule, by a model's summary, or what fits."
    )
    summary_target_tokens: int = option(
        750, "Maximum length of the summary of one output or one span of exchanges.", ge=32
    )
    protect_last_turns: int = option(
        4, "Final turns that are kept, except tool outputs that must be folded for the row to fit.", ge=0
    )
    strict_protect: bool = option(
        False,
        "Fold no tool output of protected turns; rows that then do not fit are written to a separate file.",
    )
    model: str | None = option(
        None,
        "Model that writes the summaries for summarise and auto.",
        "-m",
        "--model",
        metavar="PROVIDER/NAME",
    )
    base_url: str | None = option(None, "Any OpenAI-compatible endpoint.", metavar="URL")
    concurrency: int = option(50, "Concurrent requests to the model.", ge=1)
    sample_percent: float = option(100.0, "Only this share of the rows.", gt=0, le=100)
    seed: int = option(42, "Seed of that sample.")
    dry_run: bool = option(False, "Count and report only; nothing is written.")
    resume: bool = option(False, "Continue an interrupted run.")

    @property
    def source(self) -> str:
        """The argument, else --input. UsageError if none is named, or both are."""
        if self.argument and self.input:
            raise UsageError(
                f"the input is named twice: '{self.argument}' and --input {self.input}", "name it once"
            )
        if not self.argument and not self.input:
            raise UsageError(
                "there is nothing to compress: no input is named",
                "hermes compress FILE, or a folder, a batch run, or a query such as 'run=my_run reward>=0.5'",
            )
        return str(self.argument or self.input)


def read_compress_file(path: Path) -> Mapping[str, Any]:
    """The values of a YAML file by the names of the options."""
    from hermes.config import yaml_file

    keys = dict(_dotted_keys(yaml_file.parse(path.read_text("utf-8"), str(path)).data))
    return fields_of_keys(
        CompressOptions, keys, path, "compress", _HERMES_AGENT_KEYS, ("argument", "trust_remote_code")
    )


def _dotted_keys(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values, without hermes-agent's keys that have no meaning here."""
    for name, value in data.items():
        if not isinstance(value, dict):
            yield name, value
            continue
        for key, setting in value.items():
            if key not in _IGNORED_KEYS.get(name, ()):
                yield f"{name}.{key}", setting


@click.command()
@model_options(CompressOptions, read_file=read_compress_file, file_help=_FILE_HELP)
@json_option
@click.pass_context
@stored_variables
def compress(ctx: click.Context, /, options: CompressOptions, as_json: bool) -> None:
    """Fit trajectories to a token budget.

    Tool outputs are folded first, then thinking, then the tool outputs of the last turns; decisions and
    instructions go last. Rows that do not fit are written to a separate file with the reason. Originals
    are never changed.
    """
    from hermes.cli.compress.run import run

    ctx.exit(run(options, as_json=as_json))
