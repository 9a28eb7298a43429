"""Any program in the training loop: its sandbox, its model, its reward, and exactly the tokens it sampled."""

from __future__ import annotations

import os
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from hermes.config.paths import db_path
from hermes.core import Source, StopReason
from hermes.core.sequence import MASKED
from hermes.envs.failures import GroupDroppedError
from hermes.envs.programs.launch import find_program
from hermes.envs.programs.run import asks_on_terminal
from hermes.errors import ConfigError, UsageError
from hermes.store import Reader
from hermes.training.data.batch import BatchConfig, prepare
from tests.envs.programs.policy import AGENT, TURNS, Make, group_of, policy
from tests.envs.token_source import TokenServer, Words, said
from tests.fakes.provider import FakeProvider, text

SAMPLED_AT = 7
"""The step of the weights that the fake policy says it has."""
pytestmark = pytest.mark.usefixtures("home")


def generated(server: TokenServer) -> list[list[int]]:
    return [body["input_ids"] for path, body in server.requests if path == "/generate"]


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
@pytest.mark.parametrize("flags", ["", "--stream --rewrite"])
async def test_a_program_is_trained_on_what_was_sampled(
    make: Make, words: Words, home: Path, dialect: str, flags: str
) -> None:
    with policy(words, *TURNS) as server:
        group = await group_of(make(server, f"--dialect {dialect} {flags} {{prompt}}"))
    spoken = [token for turn in TURNS for token in words.encode(turn)]
    assert group["scores"] == [1.0, 1.0]
    prompts = generated(server)
    for tokens, masks in zip(group["tokens"], group["masks"], strict=True):
        assert [mask for mask in masks if mask != MASKED] == spoken, "each token once, in one sequence"
        assert tokens[: -len(words.encode(TURNS[-1]))] in prompts, "the context is the one it was sampled in"
    assert all(body["sampling_params"]["temperature"] == 1.0 for _, body in server.requests)
    with Reader(db_path(home)) as reader:
        trajectories = [reader.get(row.id) for row in reader.summaries()]
    assert {item.header.source for item in trajectories} == {Source.ENV}
    assert {item.outcome.stop_reason for item in trajectories if item.outcome} == {StopReason.COMPLETED}
    for item in trajectories:
        facts = item.header.metadata
        assert (facts["agent"], facts["exit_code"], facts["calls"], facts["sequences"]) == (
            "agent.py",
            0,
            2,
            1,
        )
        assert facts["tokens_sampled"] == facts["tokens_trained"] == len(spoken)
        assert facts["answers_foreign"] == facts["answers_edited"] == 0
        assert [step.message.role.value for step in item.steps] == ["user", "assistant", "tool", "assistant"]
        assert all(step.call is None or step.call.tokens is not None for step in item.steps)


async def test_the_prompt_comes_on_standard_input_too(make: Make, words: Words) -> None:
    with policy(words, *TURNS) as server:
        await group_of(make(server, ""))
    assert "Write it." in words.decode(generated(server)[0])


@pytest.mark.parametrize(
    ("act", "settings", "reason"),
    [
        ("crash", {}, "it never called its model; the program ended with exit code 1: something broke"),
        ("silent", {}, "it never called its model; the program ended with exit code 0: it printed nothing"),
        ("hang", {"terminal_lifetime": 3}, "ran for 3 s and was ended"),
        ("question", {}, "asked something on a terminal, which a rollout does not have; .*EOFError"),
        ("patience", {"terminal_lifetime": 3}, r"was ended, waiting for an answer to: Continue\? \[y/N\]"),
        ("large-file", {}, "filled the disk: ./big has more than 4 GB"),
    ],
)
async def test_a_program_that_fails_is_no_score(
    make: Make, words: Words, act: str, settings: dict[str, Any], reason: str
) -> None:
    with policy(words, *TURNS) as server, pytest.raises(GroupDroppedError, match=reason):
        await group_of(make(server, f"--act {act} {{prompt}}", **settings))


@pytest.mark.parametrize(
    ("act", "stop"), [("late-crash", StopReason.ERROR), ("late-hang", StopReason.TIMEOUT)]
)
async def test_what_failed_after_its_calls_is_in_the_store_as_failed(
    make: Make, words: Words, home: Path, act: str, stop: StopReason
) -> None:
    with policy(words, *TURNS) as server, pytest.raises(GroupDroppedError):
        await group_of(make(server, f"--act {act} {{prompt}}", terminal_lifetime=6, group_size=1))
    with Reader(db_path(home)) as reader:
        (trajectory,) = [reader.get(row.id) for row in reader.summaries()]
    assert trajectory.outcome is not None and trajectory.outcome.stop_reason is stop
    assert trajectory.turns == 2 and reader_rewards(home, trajectory.header.id) == 0


def reader_rewards(home: Path, trajectory_id: str) -> int:
    with Reader(db_path(home)) as reader:
        return len(reader.rewards(trajectory_id))


async def test_a_program_that_fills_the_disk_is_stopped(
    make: Make, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_SANDBOX__DISK_MB", "64")
    with policy(words, *TURNS) as server, pytest.raises(GroupDroppedError, match="exit code"):
        await group_of(make(server, "--act fill {prompt}", group_size=1))


async def test_a_model_that_is_too_short_for_the_agent_is_named(make: Make, words: Words) -> None:
    sentence = "the program's prompt is too long: .* limit is 6"
    with policy(words, *TURNS) as server, pytest.raises(GroupDroppedError, match=sentence):
        env = make(server)
        env.max_token_len = 64
        await group_of(env)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            "import urllib.request\nurllib.request.urlopen('https://example.org')",
            "URLError: .*; a rollout has no network but its model, at OPENAI_BASE_URL",
        ),
        (
            "open(__file__ + '.db', 'w')",
            r"PermissionError: .*agent.db'; a rollout can write to its workspace",
        ),
        ("import helper", "No module named 'helper'; a rollout sees the files that its command names"),
        (
            "import sys\ntry:\n    int('x')\nexcept ValueError:\n    import traceback\n"
            "    traceback.print_exc()\nprint('telemetry: giving up', file=sys.stderr)\nsys.exit(1)",
            "exit code 1: ValueError: invalid literal for int.*'x'$",
        ),
    ],
)
async def test_what_a_program_met_in_its_sandbox_is_named(
    make: Make, words: Words, tmp_path: Path, lines: str, reason: str
) -> None:
    (tmp_path / "helper.py").write_text("")
    program = tmp_path / "agent"
    program.write_text(f"#!/usr/bin/env python3\n{lines}\n")
    program.chmod(0o755)
    with policy(words, *TURNS) as server, pytest.raises(GroupDroppedError, match=reason):
        await group_of(make(server, "{prompt}", program, group_size=1))


async def test_an_answer_that_was_cut_is_named_where_the_program_gave_up_on_it(
    make: Make, words: Words
) -> None:
    ids = words.encode(TURNS[1])
    sentence = rf"broke; its last answer was cut at the limit of {len(ids)} tokens"
    with (
        TokenServer(lambda *_: said(ids, "length")) as server,
        pytest.raises(GroupDroppedError, match=sentence),
    ):
        await group_of(make(server, "--act late-crash {prompt}", group_size=1))


async def test_a_program_that_forces_every_answer_is_told_so(
    make: Make, words: Words, tmp_path: Path
) -> None:
    program = tmp_path / "forcing.py"
    program.write_text(AGENT.read_text().replace('"temperature": 0.0', '"tool_choice": "required"'))
    program.chmod(0o755)
    sentence = r"cannot be trained on: its model calls force their answers \(tool_choice\)"
    with policy(words, *TURNS) as server, pytest.raises(GroupDroppedError, match=sentence):
        await group_of(make(server, "{prompt}", program, group_size=1))


async def test_a_script_has_the_interpreter_that_its_user_has(
    make: Make, words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "mine"
    venv.create(place)
    package = next(place.glob("lib/python*/site-packages")) / "framework.py"
    package.write_text("")
    monkeypatch.setenv("PATH", f"{place}/bin:{os.environ['PATH']}")
    program = tmp_path / "agent.py"
    program.write_text(AGENT.read_text().replace("import argparse\n", "import argparse\nimport framework\n"))
    program.chmod(0o755)
    with policy(words, *TURNS) as server:
        assert (await group_of(make(server, "{prompt}", program)))["scores"] == [1.0, 1.0]


def test_the_interpreter_behind_a_version_managers_script_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pyenv and asdf have them: a rollout does not see the manager's files."""
    for name in ("python", "python3"):
        shim = tmp_path / "shims" / name
        shim.parent.mkdir(exist_ok=True)
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:/usr/bin:/bin")
    program = tmp_path / "agent.py"
    program.write_text("#!/usr/bin/env python3\n")
    program.chmod(0o755)
    script = find_program(str(program))
    assert str(Path(sys.executable).parent) in script.path
    assert not any("shims" in path for path in (*script.shown_paths, *script.path))
    assert find_program("python -m solver").words[0] == sys.executable


def test_a_program_in_the_bin_of_a_home_shows_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / "bin" / "agent"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_program(str(program)).shown_paths == (str(program.resolve()),)


def test_an_agent_that_an_interpreter_runs_is_named_by_its_script(tmp_path: Path) -> None:
    script = tmp_path / "solver.py"
    script.write_text("")
    assert find_program(f"python3 -X dev {script} {{prompt}}").agent == "solver.py"
    assert find_program("python3 -m solver {prompt}").agent == "python3"


async def test_a_program_reaches_nothing_but_its_model(make: Make, words: Words, home: Path) -> None:
    with policy(words, *TURNS) as server:
        await group_of(make(server, "--act network {prompt}"))
    with Reader(db_path(home)) as reader:
        outputs = [reader.get(row.id).header.metadata["output"] for row in reader.summaries()]
    assert outputs == ["Done.\n", "Done.\n"]


async def test_of_two_models_one_is_trained(
    make: Make, words: Words, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeProvider([text("Write 7.")], loop=True) as provider, policy(words, *TURNS) as server:
        monkeypatch.setenv("HERMES_PROVIDERS__LAB__BASE_URL", provider.base_url)
        command = "--model {model} --planner lab/large {prompt}"
        group = await group_of(make(server, command, train_model="worker"))
        assert {request.json["model"] for request in provider.posts} == {"large"}
    assert group["scores"] == [1.0, 1.0]
    spoken = [token for turn in TURNS for token in words.encode(turn)]
    for masks in group["masks"]:
        assert [mask for mask in masks if mask != MASKED] == spoken, "the plan is not trained on"
    with Reader(db_path(home)) as reader:
        trajectories = [reader.get(row.id) for row in reader.summaries()]
    assert {item.header.model for item in trajectories} == {"lab/large", "custom/worker"}
    (facts,) = {
        (item.header.metadata["calls"], item.header.metadata["calls_to_others"])
        for item in trajectories
        if "calls" in item.header.metadata
    }
    assert facts == (3, 1)


async def test_what_is_not_trained_is_counted_in_the_metrics_of_a_run(make: Make, words: Words) -> None:
    with policy(words, *TURNS) as server:
        plain = await group_of(make(server))
        titled = await group_of(make(server, "--title {prompt}"))
    for number, group in enumerate((titled, plain)):  # of equal scores nothing could be learned
        group["scores"] = [0.0, 1.0]
        dropped = 0 if number else 2 * len(words.encode(TURNS[0]))
        metrics = prepare([group], BatchConfig(), SAMPLED_AT).metrics
        assert (metrics["tokens/dropped"], metrics.get("tokens/dropped/side", 0)) == (dropped, dropped)
        assert metrics["sequences/branches"] == 0
        sampled = 2 * sum(len(words.encode(turn)) for turn in TURNS)
        for reason, config, step in (
            ("too_long", BatchConfig(max_tokens=10), SAMPLED_AT),
            ("stale", BatchConfig(), SAMPLED_AT + 9),
            ("foreign", BatchConfig(), SAMPLED_AT - 1),
        ):
            metrics = prepare([group], config, step).metrics
            assert metrics[f"tokens/dropped/{reason}"] == sampled
            assert metrics["tokens/dropped"] == dropped + sampled


async def test_a_model_that_nobody_serves_is_named(make: Make, words: Words) -> None:
    with policy(words, *TURNS) as server, pytest.raises(GroupDroppedError, match="nowhere/large"):
        await group_of(make(server, "--planner nowhere/large {prompt}", train_model="policy"))


async def test_a_program_that_never_calls_the_trained_model_is_named(
    make: Make, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = "it called lab/large and never 'worker', the model that is trained"
    with FakeProvider([text("7.")], loop=True) as provider, policy(words, *TURNS) as server:
        monkeypatch.setenv("HERMES_PROVIDERS__LAB__BASE_URL", provider.base_url)
        with pytest.raises(GroupDroppedError, match=sentence):
            await group_of(make(server, "--plain --model lab/large {prompt}", train_model="worker"))


@pytest.mark.parametrize(
    ("output", "asks"),
    [
        ("Trust this folder? [y/N] ", True),
        ("Error: stdin is not a terminal\n", True),
        ("sh: cannot open /dev/tty: No such device\n", True),
        ("Usage: agent [--help]\n", False),
        ("What is 7? 7\nDone.\n", False),
        ("", False),
    ],
)
def test_questions_on_a_terminal_are_recognised(output: str, asks: bool) -> None:
    assert asks_on_terminal(output) is asks


async def test_what_a_program_left_running_changes_no_reward(make: Make, words: Words) -> None:
    with policy(words, *TURNS) as server:
        group = await group_of(make(server, "--act daemon {prompt}"))
    assert group["scores"] == [1.0, 1.0]


async def test_a_script_scores_by_its_exit_code_or_by_a_number(
    make: Make, words: Words, tmp_path: Path
) -> None:
    by_code, by_file = tmp_path / "check.sh", tmp_path / "grade.sh"
    by_code.write_text('test "$(cat answer.txt)" = 7\n')
    by_file.write_text(
        '#!/bin/sh\ngrep -q \'"expected": "7"\' && echo \'{"reward": 0.5}\' > $HERMES_REWARD_FILE\n'
    )
    for script, value in ((by_code, 1.0), (by_file, 0.5)):
        with policy(words, *TURNS) as server:
            assert (await group_of(make(server, reward=str(script))))["scores"] == [value, value]


async def test_a_program_may_state_its_own_reward_if_it_was_allowed_to(make: Make, words: Words) -> None:
    with policy(words, *TURNS) as server:
        assert (await group_of(make(server, "--act reward {prompt}", reward="program")))["scores"] == [
            0.25
        ] * 2
        with pytest.raises(GroupDroppedError, match="404"):
            await group_of(make(server, "--act reward {prompt}"))


async def test_calls_beyond_the_limit_are_refused_and_the_work_is_scored(make: Make, words: Words) -> None:
    with policy(words, *TURNS) as server:
        group = await group_of(make(server, max_agent_turns=1))
    assert group["scores"] == [1.0, 1.0] and len(generated(server)) == 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"agent": ""}, "no agent is named"),
        ({"agent": "no-such-program {prompt}"}, "'no-such-program' is not on this machine"),
        ({"agent": f"{Path(__file__)} {{prompt}}"}, "test_program.py' cannot be executed"),
        ({"agent": f"{AGENT} {{promt}}"}, "name in braces"),
        ({"agent": f"{AGENT} 'unfinished"}, "cannot be read"),
        ({"reward": "absent.sh"}, "'absent.sh' is no file"),
        ({"reward": ""}, "needs prompts and something that scores"),
    ],
)
async def test_a_mistake_is_named_before_anything_is_started(
    make: Make, settings: dict[str, Any], sentence: str
) -> None:
    env = make(None, **settings)
    with pytest.raises((ConfigError, UsageError), match=sentence):
        await env.setup()
    await env.close()
