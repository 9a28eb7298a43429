"""The options of `hermes` itself, and the configuration, model and plan that they stand for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from hermes.cli.chat.inputs import read_named_text
from hermes.core.json import parse_object
from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.agent.build import RolloutPlan
    from hermes.config.load import Config
    from hermes.core import JSON, JSONObject, Trajectory
    from hermes.models.base import ChatModel
    from hermes.store import Reader, Writer


@dataclass(frozen=True)
class ChatOptions:
    """Fields are named like the flags; `hermes --help` documents them."""

    query: str | None = None
    model: str | None = None
    base_url: str | None = None
    toolsets: str | None = None
    sandbox: str | None = None
    workspace: str | None = None
    max_turns: int | None = None
    system: str | None = None
    template: str | None = None
    params: tuple[str, ...] = ()
    fragments: tuple[Path, ...] = ()
    schema: str | None = None
    continue_last: bool = False
    resume: str | None = None
    no_log: bool = False
    yes: bool = False
    as_json: bool = False
    settings: Mapping[str, JSON] = field(default_factory=dict)
    """More settings of this command, by their names in the configuration."""


def load_config(options: ChatOptions) -> Config:
    """The configuration with this command's flags on top."""
    from hermes.config.load import load
    from hermes.core.texts import SYSTEM_PROMPT
    from hermes.rl.weights.open import with_texts

    flags = {
        "sandbox.backend": options.sandbox,
        "limits.max_turns": options.max_turns,
        "system_prompt": options.system,
    }
    config = load({**options.settings, **{key: value for key, value in flags.items() if value is not None}})
    config = with_texts(config, options.model, options.base_url)
    if options.system is None:
        return config
    return replace(config, texts={name: text for name, text in config.texts.items() if name != SYSTEM_PROMPT})


def apply_template(options: ChatOptions) -> ChatOptions:
    """The options with the values of --template where the command line sets none."""
    if options.template is None:
        if options.params:
            raise UsageError("--param needs a template", "add --template NAME")
        return options
    from hermes.cli.chat.template_file import load_template, parse_params
    from hermes.config.paths import home

    template = load_template(home(), options.template)
    return replace(
        options,
        query=template.question(options.query or "", parse_params(options.params)) or None,
        system=options.system or template.system,
        model=options.model or template.model,
        toolsets=options.toolsets or template.toolsets,
        schema=options.schema or (json.dumps(template.schema) if template.schema else None),
    )


def make_plan(config: Config, model: str, options: ChatOptions) -> RolloutPlan:
    from hermes.agent.build import RolloutPlan
    from hermes.agent.examples import examples_for
    from hermes.agent.toolset_choice import choose_toolsets
    from hermes.rl.weights.open import find_policy

    workspace = Path(options.workspace).resolve() if options.workspace else None
    if workspace is not None and not workspace.is_dir():
        raise UsageError(f"--workspace {workspace} is not a directory", "create it first")
    named = options.model or config.settings.model
    policy = find_policy(config, named) if options.base_url is None else None
    if policy is not None:
        model = policy.base_model  # what suits the base model suits what was trained from it
    toolsets = choose_toolsets(config, model, options.toolsets, policy.toolsets if policy else None)
    return RolloutPlan(
        toolsets=toolsets,
        require_tools=options.toolsets is not None,
        examples=examples_for(model, toolsets),
        approve_all=options.yes,
        workspace=workspace,
    )


async def open_chat_model(config: Config, options: ChatOptions) -> ChatModel:
    """The model that the options name. With --base-url alone the server is asked which one it has."""
    from hermes.models.open import choose_model
    from hermes.rl.weights.open import open_named

    model = await choose_model(config, options.model, options.base_url)
    return open_named(config, model, options.base_url, progress=print_progress)


@contextmanager
def open_chat_writer(config: Config, options: ChatOptions) -> Iterator[Writer]:
    """The store of this home; with --no-log one in a temporary folder that is removed at the end."""
    from hermes.agent.build import open_writer

    if not options.no_log:
        with open_writer(config) as writer:
            yield writer
        return
    from hermes.safety.redact import Redactor
    from hermes.store import Writer

    with (
        TemporaryDirectory(prefix="hermes-unlogged-") as folder,
        Writer(Path(folder) / "hermes.db", Redactor(config.secrets).text) as writer,
    ):
        yield writer


def resumed_conversation(config: Config, options: ChatOptions) -> Trajectory | None:
    """The conversation that --continue or --resume names; None without them."""
    from hermes.config.paths import db_path
    from hermes.store import Reader

    if not options.continue_last and options.resume is None:
        return None
    with Reader(db_path(config.home)) as reader:
        if options.resume is not None:
            return reader.get(reader.resolve(options.resume))
        newest = last_conversation(reader)
        if newest is None:
            raise UsageError("there is no conversation to continue", "start one: hermes")
        return reader.get(newest)


def last_conversation(reader: Reader) -> str | None:
    """The id of the newest chat or question; None if there is none."""
    from hermes.store import Filter

    newest = [row for source in ("chat", "query") for row in reader.summaries(Filter(source=source), limit=1)]
    return max(newest, key=lambda row: row.created_at_ms).id if newest else None


def read_schema(text: str | None) -> JSONObject | None:
    """The JSON schema that --schema gives: a file, or the schema itself; UsageError if it is none."""
    if text is None:
        return None
    source = "--schema"
    if not text.lstrip().startswith("{"):
        source = text
        text = read_named_text(Path(text), "the schema ")
    from hermes.safety.json_schema import schema_fault

    try:
        schema = parse_object(text)
    except ValueError as error:
        raise UsageError(
            f"{source} is no JSON schema: {error}", 'write a JSON schema: {"type": "object", …}'
        ) from error
    fault = schema_fault(schema)
    if fault is not None:
        raise UsageError(f"{source} is no JSON schema: {fault}", "see https://json-schema.org")
    return schema


def print_progress(line: str) -> None:
    """Prints what a local model does while it loads, on standard error."""
    click.echo(f"({line})", err=True)
