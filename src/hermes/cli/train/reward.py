"""`hermes reward`: a trained reward model as a scorer, over HTTP or on files and trajectories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.options import CommandGroup, RenamedOption, json_option, stored_variables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hermes.config.load import Config
    from hermes.data.example import Example
    from hermes.training.preference.reward_model import RewardScorer

_SERVICE = click.option(
    "--service",
    "--base-url",
    "base_url",
    cls=RenamedOption,
    metavar="URL|managed",
    help="Tinker service. Default: the one that trained it.",
)


@click.group(cls=CommandGroup)
def reward() -> None:
    """Reward models that `hermes train reward` made: serve them, or score answers with them."""


@reward.command()
@click.argument("name")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8002, show_default=True, type=click.IntRange(0, 65535), help="0: any free port."
)
@_SERVICE
@stored_variables
def serve(name: str, host: str, port: int, base_url: str | None) -> None:
    """Score conversations over HTTP.

    It answers POST /pooling, as the `preference` environment asks.
    """
    from hermes.cli.terminal.interrupted import report_stop
    from hermes.config.load import load
    from hermes.training.preference.serve import TOKEN_VARIABLE
    from hermes.training.preference.serve import serve as serve_http

    config = load()
    scorer = _scorer(config, name, base_url)
    token = config.environ.get(TOKEN_VARIABLE) or None
    serve_http(scorer, name, host, port, token, lambda url: click.echo(f"reward model {name} at {url}"))
    report_stop("reward serve")


@reward.command()
@click.argument("name")
@click.argument("targets", nargs=-1, required=True)
@_SERVICE
@json_option
@stored_variables
def score(name: str, targets: tuple[str, ...], base_url: str | None, as_json: bool) -> None:
    """Score the last answer of conversations.

    TARGETS are files of any export, or ids of trajectories.
    """
    from hermes.cli.terminal.waiting import waiting
    from hermes.config.load import load

    config = load()
    with waiting(f"opening {name}"):
        scorer = _scorer(config, name, base_url)
    for example in _examples(config, targets):
        with waiting(f"scoring {example.id}"):
            scored = scorer.score(example.messages, example.tools)
        if as_json:
            click.echo(json.dumps({"id": example.id, "score": scored.score, "spread": scored.spread}))
        else:
            click.echo(f"{scored.score:+8.3f}  ±{scored.spread:.3f}  {example.id}")


def _scorer(config: Config, name: str, base_url: str | None) -> RewardScorer:
    from hermes.envs.tokenise import load_tokenizer
    from hermes.models.render.chat import ChatRenderer
    from hermes.training.preference.reward_model import RewardScorer, read_spec
    from hermes.training.service.client import check_reachable, connection

    spec = read_spec(name, config.home)
    service = connection(base_url or spec.url or None, config.environ)
    if service.local:
        check_reachable(service.url)
    renderer = ChatRenderer.of(load_tokenizer(spec.base_model), spec.parser, spec.max_tokens)
    return RewardScorer(spec, service, renderer)


def _examples(config: Config, targets: tuple[str, ...]) -> Iterator[Example]:
    from hermes.config.paths import db_path
    from hermes.data.example import load
    from hermes.data.formats.base import BadRowError
    from hermes.data.importing import read_row, rows_of
    from hermes.errors import UsageError
    from hermes.store import Reader

    for target in targets:
        if Path(target).exists():
            for file, line in rows_of([Path(target)]):
                try:
                    yield read_row(line, None, None)
                except BadRowError as error:
                    raise UsageError(
                        f"{file}:{line.number}: {error}", "see hermes export --formats"
                    ) from error
            continue
        with Reader(db_path(config.home)) as reader:
            yield load(reader, reader.get(target))
