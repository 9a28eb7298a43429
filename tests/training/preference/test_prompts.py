"""Prompts of RLHF from the store: what people asked, each once, with what the model saw before it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hermes.batch.tasks import read_dataset
from hermes.config.load import load
from hermes.core import Message, ToolCall
from hermes.data.export.select import EVERYTHING
from hermes.data.preference.pairs import PreferencePair, PreferenceSource
from hermes.errors import HermesError
from hermes.rl.rlhf import environment_arguments, rlhf_run_spec
from hermes.store import Filter, Reader, Writer
from hermes.training.options import RlhfOptions
from hermes.training.preference.prompts import pair_prompts, write_prompts
from tests.records import record

SYSTEM = Message.system("Be brief.")


def test_the_openings_of_stored_trajectories_are_prompts_each_once(tmp_path: Path) -> None:
    db, path = tmp_path / "hermes.db", tmp_path / "run" / "prompts.jsonl"
    with Writer(db) as writer:
        for answer in ("4", "5"):  # tried twice, and asked on
            messages = [SYSTEM, Message.user("2 + 2?"), Message.assistant(answer)]
            record(writer, [*messages, Message.user("Sure?"), Message.assistant("Yes.")], run_id="mine")
        record(writer, [Message.user("2 + 2?"), Message.assistant("4")], run_id="mine")  # no system prompt
        record(writer, [replace(Message.user("What is this?"), images=("sha",)), Message.assistant("A cat.")])
        record(writer, [Message.user("Hello?"), Message.assistant("Hi.")], run_id="other")
    with Reader(db) as reader:
        mine = replace(EVERYTHING, filters=Filter(run_id="mine"))
        assert write_prompts(reader, mine, path) == 2
        with pytest.raises(HermesError, match="the store has no prompts that match"):
            write_prompts(reader, replace(EVERYTHING, filters=Filter(run_id="nobody")), path)
    with_system, plain = read_dataset(str(path)).rows
    assert (with_system.prompts[0], plain.prompts[0]) == ("2 + 2?", "2 + 2?")
    assert list(with_system.history) == [SYSTEM] and not plain.history


def test_the_environment_gets_the_tools_and_the_turns_of_the_agent(tmp_path: Path) -> None:
    options = RlhfOptions(reward_model="liked", name="mine", max_turns=6, toolsets=["math", "file"])
    run = rlhf_run_spec(load({}, {"HERMES_HOME": str(tmp_path)}), options)
    prompts = tmp_path / "prompts.jsonl"
    words = environment_arguments(options, run, prompts, 0, "http://127.0.0.1:2", "http://127.0.0.1:3")
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    assert flags["--env.max_agent_turns"] == "6"
    assert flags["--env.enabled_toolsets"] == '["math", "file"]'
    assert flags["--env.reward_model_url"] == "http://127.0.0.1:3"


def test_the_prompts_of_pairs_have_the_conversation_and_end_before_a_call_of_a_tool(tmp_path: Path) -> None:
    question, answer, again = Message.user("2 + 2?"), Message.assistant("4"), Message.user("Sure?")
    call = ToolCall("c", "calculate", "{}")
    with_tool = (question, Message.assistant(tool_calls=(call,)), Message.tool(call, "4"))
    prompts = ((SYSTEM, question), (SYSTEM, question), (SYSTEM, question, answer, again), with_tool)
    image = (replace(Message.user("What is this?"), images=("sha",)),)
    pairs = [
        PreferencePair(prompt, (answer,), (again,), "a", "b", 1, PreferenceSource.CHOICE, 1.0, "t")
        for prompt in (*prompts, image)
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in pair_prompts(pairs)))
    first, later, plain = read_dataset(str(path)).rows
    assert (first.history, first.prompts) == ((SYSTEM,), ("2 + 2?",))
    assert (later.history, later.prompts) == ((SYSTEM, question, answer), ("Sure?",))
    assert (plain.history, plain.prompts) == ((), ("2 + 2?",))
