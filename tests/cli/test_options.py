"""A command's options are declared once: `hermes rl` and `hermes train grpo` have the same bounds, defaults
and help, and what a process is started with is read back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from hermes.cli.model_options import model_options
from hermes.cli.train.command import train
from hermes.config.option import command_words, option
from hermes.rl.config.fields import TrainerFields, fields_of
from hermes.training.options import RlFields, RlhfOptions, RlOptions, SftOptions, size_defaults

_GRPO = train.commands["grpo"]


def test_the_two_doors_to_the_trainer_have_the_same_fields() -> None:
    doors = {parameter.name: parameter for parameter in _GRPO.params}
    defaults = TrainerFields().model_dump(mode="json")
    unset = (None, "", False)
    for name, info in fields_of("tinker", TrainerFields, defaults).items():
        parameter = doors.get(name.removeprefix("tinker."))
        if not isinstance(parameter, click.Option):
            continue
        bounds = (getattr(parameter.type, "min", None), getattr(parameter.type, "max", None))
        default = ",".join(info.default) if isinstance(info.default, list) else info.default
        assert (bounds, parameter.help) == ((info.minimum, info.maximum), info.description), name
        assert default in unset or parameter.default == default, name
    assert set(RlFields.model_fields) <= set(doors), "none of the shared fields is missing"


def test_what_a_trainer_is_started_with_is_read_back() -> None:
    values: dict[str, Any] = {
        "base_model": "m",
        "lora_targets": ["attn", "unembed"],
        "clip": [0.8, 1.28],
        "no_wandb": True,
        "with_engine": False,
        "extra_sinks": ("tensorboard", "trackio"),
        "learning_rate": 1e-4,
        "advantage": "std",
        "teacher_url": "",
        "run_dir": Path("x"),
    }
    words = command_words(RlOptions, values)
    parsed: list[RlOptions] = []

    @click.command()
    @model_options(RlOptions)
    def command(options: RlOptions) -> None:
        parsed.append(options)

    assert CliRunner().invoke(command, list(words)).exit_code == 0
    options = parsed[0]
    stated = {name: value for name, value in values.items() if value not in (False, "")}
    assert {name: getattr(options, name) for name in stated} == stated
    assert options.model_fields_set == set(stated), "all else has the model's own default"


def test_defaults_follow_the_size_of_the_model_where_nobody_chose() -> None:
    small, large = RlOptions(), RlOptions(base_model="org/model-8B")
    assert (small.steps, small.sequences, small.max_tokens) == (100, 32, 2048)
    assert (large.steps, large.sequences, large.max_tokens) == (2500, 128, 9000)
    assert RlOptions(batch_size=5).sequences == 5
    assert size_defaults("hermes/smollm2").learning_rate > size_defaults("org/model-8B").learning_rate
    assert SftOptions(base_model="org/model-8B").max_tokens == 2048
    assert RlhfOptions(reward_model="r").kl_coefficient > RlOptions().kl_coefficient == 0


class _Small(RlFields):
    number: int = option(3, "A number.", "--count", former=("--amount",), ge=1, le=9)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--count", "10"], "'--count'"),
        (["--lora-targets", "attn,head"], "'--lora-targets'"),
        (["--rank", "0"], "'--rank'"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_flag(words: list[str], said: str) -> None:
    result = CliRunner().invoke(_command, words)
    assert result.exit_code == 2 and said in result.output


def test_toolsets_are_words_with_commas_or_several_flags() -> None:
    options = RlhfOptions(reward_model="r", toolsets=("math, file", "web"))
    assert options.toolsets == ("math", "file", "web")


def test_a_former_name_is_accepted_and_not_listed() -> None:
    assert CliRunner().invoke(_command, ["--amount", "4"]).output == "4\n"
    assert "--amount" not in CliRunner().invoke(_command, ["--help"]).output


@click.command()
@model_options(_Small)
def _command(options: _Small) -> None:
    click.echo(options.number)
