"""An environment's command line: what wins over what, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from pydantic import Field

from hermes.envs.base import BaseEnv
from hermes.envs.builtin.calculator import CalculatorEnv
from hermes.envs.builtin.tool_calling import ToolCallingEnv
from hermes.envs.config import BaseEnvConfig, EvalHandlingEnum
from hermes.envs.modes.commandline import build, parse, usage
from hermes.envs.servers.config import APIServerConfig, ServerBaseline
from hermes.errors import ConfigError, HermesError, UsageError


class WordsConfig(BaseEnvConfig):
    words: list[str] | None = Field(default=None, description="Words to use.")
    extra: dict[str, Any] = Field(default_factory=dict, description="More.")


class WordsEnv(BaseEnv):
    name = "words"
    servers: ClassVar[Any] = [APIServerConfig(model_name="from init", base_url="http://init/v1", timeout=7)]

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, Any]:
        return WordsConfig(group_size=5, max_token_length=99), cls.servers

    async def get_next_item(self) -> Any:
        return None


def resolved(*argv: str, mode: str = "serve", cls: type[BaseEnv] = WordsEnv) -> tuple[WordsConfig, list[Any]]:
    env, _ = build(cls, parse([mode, *argv]))
    assert isinstance(env.config, WordsConfig)
    return env.config, [server.config for server in env.server.servers]


def test_the_command_line_wins_over_the_file_and_the_file_over_config_init(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "env:\n  group_size: 6\n  max_token_length: 100\nopenai:\n  model_name: from file\n  timeout: 8\n"
    )
    config, servers = resolved("--config", str(file), "--env.group_size", "7", "--openai.timeout=9")
    assert (config.group_size, config.max_token_length, config.steps_per_eval) == (7, 100, 100)
    assert [(one.timeout, one.model_name, one.base_url) for one in servers] == [
        (9, "from file", "http://init/v1")
    ]


def test_the_api_s_address_is_the_person_s_unless_flag_or_file_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("env:\n  rollout_server_url: http://file:1\n")
    assert resolved()[0].rollout_server_url == "http://localhost:8000"
    monkeypatch.setenv("RL_API_URL", "http://variable:1/")
    assert resolved()[0].rollout_server_url == "http://variable:1"
    assert resolved("--config", str(file))[0].rollout_server_url == "http://file:1"
    assert resolved("--env.rollout_server_url", "http://flag:1")[0].rollout_server_url == "http://flag:1"
    monkeypatch.setenv("RL_API_URL", "nowhere")
    with pytest.raises(UsageError, match="RL_API_URL: expected an address"):
        resolved()


def test_toolsets_that_cannot_be_used_stop_an_agent_environment_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"cannot be used: .*image_gen \(") as caught:
        build(CalculatorEnv, parse(["serve", "--env.distribution", "creative"]))
    assert "--env.disabled_toolsets image_gen,vision" in caught.value.hint
    flags = ["--env.distribution", "creative", "--env.disabled_toolsets", "image_gen,vision"]
    env, _ = build(CalculatorEnv, parse(["serve", *flags]))
    assert isinstance(env, CalculatorEnv) and env.toolsets_for(SimpleNamespace(key="k")) == ("web",)


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (["--env.inference_weight", "-1"], "inference_weight", -1.0),
        (["--env.inference_weight=-1"], "inference_weight", -1.0),
        (["--env.total_steps", "-1", "--env.use_wandb"], "total_steps", -1),
        (["--env.use_wandb"], "use_wandb", True),
        (["--env.use_wandb", "false"], "use_wandb", False),
        (["--env.use-wandb=False"], "use_wandb", False),
        (["--env.wandb_name", "None"], "wandb_name", None),
        (["--env.words", "a,b"], "words", ["a", "b"]),
        (["--env.words", '["a, b"]'], "words", ["a, b"]),
        (["--env.extra", '{"k": 1}'], "extra", {"k": 1}),
        (["--env.eval_handling", "NONE"], "eval_handling", EvalHandlingEnum.NONE),
        (["--env.min_batch_allocation", "0.25"], "min_batch_allocation", 0.25),
    ],
)
def test_a_flag_is_read_as_its_field_is_typed(flags: list[str], field: str, value: Any) -> None:
    config, _ = resolved(*flags)
    assert getattr(config, field) == value


class PrivateEnv(WordsEnv):
    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, Any]:
        return WordsConfig(use_wandb=False), cls.servers


@pytest.mark.parametrize("mode", ["serve", "process", "evaluate"])
def test_no_mode_sends_to_wandb_what_the_author_keeps_to_himself(mode: str) -> None:
    assert resolved(mode=mode, cls=PrivateEnv)[0].use_wandb is False
    assert resolved("--env.use_wandb", mode=mode, cls=PrivateEnv)[0].use_wandb is True
    assert resolved(mode=mode)[0].use_wandb is True, "the field's default"


def test_the_name_of_the_class_is_what_it_registers_under_unless_told() -> None:
    assert resolved()[0].wandb_name == "words"
    assert resolved("--env.wandb_name", "mine")[0].wandb_name == "mine"


def test_process_changes_defaults_that_file_and_flags_still_win_over() -> None:
    config, _ = resolved(mode="process")
    assert (config.ensure_scores_are_not_same, config.include_messages) == (False, True)
    assert config.data_path_to_save_groups == "data/words.jsonl"
    config, _ = resolved("--env.include_messages=false", mode="process")
    assert config.include_messages is False


class BareServer(WordsEnv):
    servers = APIServerConfig(model_name="bare")


class Conventional(WordsEnv):
    servers = ServerBaseline(model_name="base", server_type="sglang")


class Several(WordsEnv):
    servers: ClassVar[Any] = [
        APIServerConfig(base_url="http://a/v1"),
        APIServerConfig(base_url="http://b/v1"),
    ]


@pytest.mark.parametrize("cls", [BareServer, Conventional])
def test_one_config_without_an_address_means_the_four_ports_of_old(cls: type[BaseEnv]) -> None:
    _, servers = resolved(cls=cls)
    assert [one.base_url for one in servers] == [f"http://localhost:{port}/v1" for port in range(9004, 9008)]
    assert {one.model_name for one in servers} == {"bare" if cls is BareServer else "base"}


@pytest.mark.parametrize("cls", [BareServer, Conventional])
def test_one_config_with_an_address_is_one_server_there(cls: type[BaseEnv]) -> None:
    _, servers = resolved("--openai.base_url", "http://here/v1", cls=cls)
    assert [one.base_url for one in servers] == ["http://here/v1"]
    assert servers[0].server_type == ("openai" if cls is BareServer else "sglang")


def test_flags_for_one_server_are_refused_where_there_are_several(tmp_path: Path) -> None:
    assert [one.base_url for one in resolved(cls=Several)[1]] == ["http://a/v1", "http://b/v1"]
    with pytest.raises(UsageError, match="there are several"):
        resolved("--openai.model_name", "x", cls=Several)
    file = tmp_path / "two.yaml"
    file.write_text("openai:\n- {base_url: http://c/v1}\n- {base_url: http://d/v1}\n")
    assert [one.base_url for one in resolved("--config", str(file))[1]] == ["http://c/v1", "http://d/v1"]
    with pytest.raises(UsageError, match="there are several"):
        resolved("--config", str(file), "--openai.model_name", "x")


@pytest.mark.parametrize(
    ("argv", "error", "message"),
    [
        (["--env.gruop_size", "2"], UsageError, "no flag --env.gruop_size"),
        (["--evn.group_size", "2"], UsageError, "no flag --evn"),
        (["--confg", "x"], UsageError, "no flag --confg"),
        (["--openai.base", "x"], UsageError, "no flag --openai.base"),
        (["--env.group_size", "many"], ConfigError, "--env.group_size is 'many'"),
        (["--env.group_size", "0"], ConfigError, "--env.group_size is '0'"),
        (["--config", "nowhere.yaml"], ConfigError, "nowhere.yaml cannot be read"),
        (["stray"], UsageError, "'stray' is neither a mode nor a flag"),
    ],
)
def test_what_makes_no_sense_is_refused_with_exit_code_2(
    argv: list[str], error: type[HermesError], message: str
) -> None:
    with pytest.raises(error) as caught:
        resolved(*argv)
    assert message in caught.value.message
    assert caught.value.exit_code == 2


def test_settings_that_do_not_go_together_are_said_to_be_that_and_not_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        build(ToolCallingEnv, parse(["serve", "--env.credit", "call", "--env.max_agent_turns", "3"]))
    assert caught.value.message == (
        "--env.* are inconsistent: credit 'call' is for answers of one turn: set max_agent_turns to 1."
    )


def test_a_close_flag_is_suggested() -> None:
    with pytest.raises(UsageError) as caught:
        resolved("--env.gruop_size", "2")
    assert caught.value.hint == "did you mean --env.group_size?"


def test_help_lists_every_field_with_its_default() -> None:
    shown = usage(WordsEnv)
    assert "--env.words  Words to use. [None]" in shown
    assert "--env.group_size" in shown and "[5]" in shown and "--openai.base_url" in shown


def test_help_shows_the_address_that_a_variable_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_API_URL", "http://127.0.0.1:5555")
    assert re.search(r"--env.rollout_server_url .*\[http://127.0.0.1:5555\]", usage(WordsEnv))


def test_a_mode_is_needed() -> None:
    with pytest.raises(UsageError, match="no mode was given"):
        parse(["--env.group_size", "2"])


class FewOptions(WordsEnv):
    def __init__(self, config: BaseEnvConfig, server_configs: Any) -> None:
        super().__init__(config, server_configs)


class Keyless(WordsEnv):
    def __init__(self, config: BaseEnvConfig, server_configs: Any, slurm: bool = False) -> None:
        raise ValueError("no key for the judge")


def test_a_constructor_may_leave_options_out_and_its_failure_is_a_message() -> None:
    assert resolved(cls=FewOptions)[0].group_size == 5
    with pytest.raises(HermesError, match="the constructor failed: ValueError: no key for the judge"):
        resolved(cls=Keyless)
