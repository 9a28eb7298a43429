"""A command's options object has the fields that its command line sets."""

from __future__ import annotations

from dataclasses import fields

import click
import pytest

from hermes.cli.batch.bench import BenchOptions, bench
from hermes.cli.batch.command import batch
from hermes.cli.batch.options import BatchOptions
from hermes.cli.chat.options import ChatOptions
from hermes.cli.compress.command import compress
from hermes.cli.compress.options import CompressOptions
from hermes.cli.data.export import ExportOptions, export
from hermes.cli.main import cli
from hermes.cli.options import FilterOptions
from hermes.cli.train.command import grpo, ppo, rlhf, sft
from hermes.cli.train.options import RlOptions, SftOptions
from hermes.cli.train.preference import dpo, kto
from hermes.cli.train.preference_run import DpoOptions, KtoOptions
from hermes.cli.train.rlhf import RlhfOptions

_FILTERS = {field.name for field in fields(FilterOptions)}
_RLHF = {field.name for field in fields(RlhfOptions)}


@pytest.mark.parametrize(
    ("command", "options_class", "without_field", "without_parameter"),
    [
        (
            batch,
            BatchOptions,
            {"api_key", "batch_size", "config_file", "list_distributions", "verbose", "log_prefix_chars"},
            set(),
        ),
        (bench, BenchOptions, set(), set()),
        (cli, ChatOptions, {"version"}, set()),
        (compress, CompressOptions, {"config_file", "named_source"}, set()),
        (export, ExportOptions, {"listing", "delete", "yes", *_FILTERS}, {"filters"}),
        (sft, SftOptions, _FILTERS, {"filters"}),
        (grpo, RlOptions, {"config_file", "group_size"}, set()),
        (ppo, RlOptions, {"config_file", "group_size", *_RLHF, *_FILTERS}, {"loss"}),
        (rlhf, RlOptions, {"config_file", "group_size", *_RLHF, *_FILTERS}, {"loss"}),
        (dpo, DpoOptions, _FILTERS, {"filters"}),
        (kto, KtoOptions, _FILTERS, {"filters"}),
    ],
)
def test_every_parameter_has_its_field(
    command: click.Command, options_class: type, without_field: set[str], without_parameter: set[str]
) -> None:
    parameters = {parameter.name for parameter in command.params} - {"help"}
    assert parameters - without_field == {field.name for field in fields(options_class)} - without_parameter
