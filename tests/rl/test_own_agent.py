"""`hermes rl check --agent` and `hermes rl start --agent`: a program of a stranger does the rollouts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hermes.config.paths import db_path
from hermes.envs.programs.record import RolloutCounts
from hermes.rl.checks.program import judge
from hermes.rl.run import find_run, read_metrics
from hermes.store import Reader
from hermes.training.data.sampling_distribution import LogprobBounds
from hermes.training.monitor.logprob_proof import CheckedSequence
from tests.cli.process import failure
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, hermes, how_it_ended

AGENT = Path(__file__).parents[1] / "envs" / "programs" / "agent.py"
WORDS = (
    "--agent",
    f"{AGENT} --stream --plain {{prompt}}",
    "--prompts",
    "tasks.jsonl",
    "--reward",
    "grade.sh",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a person keeps tasks and the script that scores them: by what is in the answer's length."""
    place = tmp_path / "mine"
    place.mkdir()
    (place / "grade.sh").write_text("tr -cd aeiou | wc -c > $HERMES_REWARD_FILE\n")
    rows = ({"prompt": f"Say {thing}."} for thing in ("rain", "trees", "boats", "tea"))
    (place / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def test_a_check_proves_what_would_be_trained(home_with: MakeHome, folder: Path) -> None:
    report = answer(home_with(max_token_length=16), "rl", "check", *WORDS, cwd=folder)
    facts = report["facts"]
    assert report["holds"] and report["agent"] == "agent.py" and facts["exit_code"] == 0
    assert facts["calls"] >= 1 and facts["tokens_trained"] == facts["tokens_sampled"] > 0
    assert report["largest_logprob_difference"] < 0.2, "bf16 where the machine has it"


def test_a_mistake_is_named_before_the_policy_is_started(home_with: MakeHome, folder: Path) -> None:
    home = home_with()
    for words, sentence in (
        (("--agent", "no-such-agent {prompt}", *WORDS[2:]), "'no-such-agent' is not on this machine"),
        ((*WORDS[:2], "--prompts", "tasks.jsonl", "--reward", "absent.sh"), "'absent.sh' is no file"),
        ((*WORDS[:2], "--prompts", "absent.jsonl", *WORDS[4:]), "absent.jsonl"),
    ):
        assert sentence in failure(hermes(home, "rl", "check", *words, cwd=folder), 2)[0]


def test_a_program_that_fails_is_named_after_one_rollout(home_with: MakeHome, folder: Path) -> None:
    home = home_with(max_token_length=16)
    silent = ("--agent", f"{AGENT} --act silent {{prompt}}", *WORDS[2:])
    assert failure(hermes(home, "rl", "check", *silent, cwd=folder), 1)[0] == (
        "the rollout has no reward: a group failed (program): it never called its model; "
        "the program ended with exit code 0: it printed nothing"
    )


def test_a_file_that_a_program_misses_is_shown_to_it(home_with: MakeHome, folder: Path) -> None:
    home = home_with(max_token_length=16)
    (folder / "helper.py").write_text("")
    script = folder / "mine.py"
    script.write_text("#!/usr/bin/env python3\nimport helper\n" + AGENT.read_text().partition("\n")[2])
    script.chmod(0o755)
    words = ("rl", "check", "--agent", "./mine.py --plain {prompt}", *WORDS[2:])
    refused = failure(hermes(home, *words, cwd=folder), 1)[0]
    assert refused.endswith("a rollout sees the files that its command names, and those of env.agent_paths")
    shown = f'env.agent_paths=["{folder}/helper.py"]'
    assert answer(home, *words, "--set", shown, cwd=folder)["agent"] == "mine.py"


def test_preflight_shows_three_rollouts_of_a_program(home_with: MakeHome, folder: Path) -> None:
    home = home_with(max_token_length=16)
    program = answer(home, "rl", "preflight", *WORDS, cwd=folder)["program"]
    assert program["calls"] == [1, 1, 1] and len(program["seconds"]) == 3
    assert program["rewards_differ"] is (len(set(program["rewards"])) > 1)
    assert 0 < program["first_prompt_tokens"] < program["longest_tokens"] <= program["context_tokens"] == 512
    text = hermes(home, "rl", "preflight", cwd=folder).stdout
    assert "program: 3 rollouts of 1 model calls" in text and "of a context of 512; rewards" in text


@pytest.mark.timeout(600)
def test_a_run_trains_inside_a_program(home_with: MakeHome, folder: Path) -> None:
    home = home_with(total_steps=2)
    edits = ("group_size=4", "batch_size=8", "max_token_length=8", "max_agent_turns=2")
    flags = [word for edit in edits for word in ("--set", edit)]
    run = find_run(home, answer(home, "rl", "start", *WORDS, *flags, cwd=folder)["run_id"])
    assert how_it_ended(run) == "completed: None"
    rows = list(read_metrics(run.metrics_path))
    assert [row["step"] for row in rows] == [1, 2]
    assert [(row["sequences/branches"], row["tokens/dropped"]) for row in rows] == [(0, 0)] * 2
    with Reader(db_path(home)) as reader:
        facts = [reader.get(row.id).header.metadata for row in reader.summaries(limit=100)]
    assert len(facts) >= 16 and {fact["agent"] for fact in facts} == {"agent.py"}


def test_the_verdict_sees_other_logprobs_and_nothing_to_train() -> None:
    counts = RolloutCounts(1, 0, 1, 0, 0, 20, 20, 0, 0, 0, 0, 0, 0)
    stated = [-1.0 - 0.1 * index for index in range(20)]
    exact = CheckedSequence(stated, [LogprobBounds(value, value) for value in stated])
    other = CheckedSequence(stated, [LogprobBounds(value - 1.5, value - 1.5) for value in stated])
    assert judge(counts, [exact])[1]
    assert judge(counts, [other])[1] is False
    assert judge(replace(counts, tokens_trained=0), [exact])[1] is False
