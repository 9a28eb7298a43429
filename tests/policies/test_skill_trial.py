"""`hermes skills trial` against a provider on loopback: skills that help, that harm, that nobody opens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes.errors import UsageError
from hermes.policies.text.ledger import Ledger, Spending
from hermes.policies.text.search import Evaluator
from hermes.policies.text.signal import TaskScore, TextTask
from hermes.policies.text.trial import run_trial
from hermes.skills.skill import SkillOrigin, parse_skill
from hermes.store import Filter, Reader
from tests.cli.process import failure, hermes
from tests.fakes.provider import FakeProvider, Reply, text, tool_calls
from tests.policies.text_world import configured, tasks_file

RULE = "Write a word in capital letters."


def install_skill(home: Path, name: str, body: str, *, learned: bool = False) -> None:
    folder = home / "skills" / name
    folder.mkdir(parents=True, exist_ok=True)
    source = "metadata: {hermes: {learned_from: T1}}\n" if learned else ""
    (folder / "SKILL.md").write_text(
        f"---\nname: {name}\ndescription: How to write words.\n{source}---\n{body}\n"
    )


def reader_of_skills(opens: bool) -> Callable[[dict[str, Any]], Reply]:
    """A model that opens `words` if it is listed, and does what it says."""

    def reply(request: dict[str, Any]) -> Reply:
        messages = request["messages"]
        listed = "- words:" in messages[0]["content"]
        results = [message["content"] for message in messages if message["role"] == "tool"]
        if opens and listed and not results:
            return tool_calls([("skill_view", {"name": "words"})])
        asked = next(message["content"] for message in messages if message["role"] == "user")
        word = re.search(r"the word (\w+)\.", asked)
        assert word is not None
        if any(RULE in result for result in results):
            return text(word[1].upper())
        return text("no" if results else f"The word is {word[1]}.")

    return reply


def command(folder: Path) -> tuple[str, ...]:
    return ("skills", "trial", "words", "--tasks", str(tasks_file(folder, 12)), "--toolsets", "skills")


def trial(home: Path, folder: Path, *more: str) -> dict[str, Any]:
    words = (
        "skills",
        "trial",
        "words",
        "--tasks",
        str(tasks_file(folder, 12)),
        "--toolsets",
        "skills",
        *more,
    )
    done = hermes(home, *words, "--json", timeout_s=120)
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_a_skill_that_is_opened_helps_and_costs_what_it_costs(tmp_path: Path) -> None:
    with FakeProvider(reader_of_skills(opens=True)) as provider:
        home = configured(tmp_path / "home", provider)
        install_skill(home, "words", RULE)
        facts = trial(home, tmp_path)
        asked = len(provider.posts)
        assert facts["verdict"] == "helps" and (facts["tasks"], facts["opened"]) == (12, 12)
        assert facts["having"]["score"]["mean"] == 1 and facts["lacking"]["score"]["mean"] == 0
        assert facts["having"]["tokens"] > facts["lacking"]["tokens"]
        assert asked == 12 * 2 + 12  # two calls with it, one without
        assert trial(home, tmp_path) == facts and len(provider.posts) == asked  # paid once
        shown = hermes(home, *command(tmp_path))
        assert "effect   +1.000" in shown.stdout and "opened   in 12 of 12" in shown.stdout
    with Reader(home / "hermes.db") as reader:
        texts = [entry.header.config.get("texts") for entry in reader.trajectories(Filter())]
    assert sum(entry is None for entry in texts) == sum(entry is not None for entry in texts) == 12


def test_a_skill_that_nobody_opens_is_not_shown_to_help(tmp_path: Path) -> None:
    with FakeProvider(reader_of_skills(opens=False)) as provider:
        home = configured(tmp_path / "home", provider)
        install_skill(home, "words", RULE)
        facts = trial(home, tmp_path)
        assert (facts["verdict"], facts["opened"], facts["effect"]["mean"]) == ("not shown to help", 0, 0)


def checked(home: Path) -> str:
    (entry,) = json.loads(hermes(home, "skills", "check", "words", "--json").stdout)
    assert entry["ok"] is True
    return str(entry["trial"])


def test_a_learned_skill_is_offered_once_a_trial_shows_that_it_helps(tmp_path: Path) -> None:
    question = ("-q", "Write the word copper.", "--toolsets", "skills", "--json")
    with FakeProvider(reader_of_skills(opens=True)) as provider:
        home = configured(tmp_path / "home", provider)
        install_skill(home, "words", RULE, learned=True)
        assert "before a trial: hermes skills trial words" in checked(home)
        assert json.loads(hermes(home, *question).stdout)["answer"] == "The word is copper."
        assert trial(home, tmp_path)["verdict"] == "helps"
        assert checked(home) == "None"
        assert json.loads(hermes(home, *question).stdout)["answer"] == "COPPER"
        install_skill(home, "words", "Write anything.", learned=True)
        assert "before a trial" in checked(home)  # it is another text now
        assert trial(home, tmp_path)["verdict"] == "not shown to help"
        assert checked(home) == "stopped helping: not shown to help (effect +0.000 on 12 tasks)"


def test_what_cannot_be_tried_is_one_sentence(tmp_path: Path) -> None:
    tasks = ("--tasks", str(tasks_file(tmp_path, 12)), "--toolsets", "skills")
    error, fix = failure(hermes(tmp_path, "skills", "trial", "no-such-skill", *tasks), 2)
    assert "no skill 'no-such-skill'" in error and "browse" in fix
    error, fix = failure(hermes(tmp_path, "skills", "trial", "arxiv"), 2)
    assert "needs tasks" in error and "--tasks" in fix


class Scored:
    """Scores as told: by whether the skill is hidden."""

    name = "told"
    tasks = tuple(TextTask(f"t{number}", f"question {number}") for number in range(40))

    def __init__(self, having: float, lacking: float, cost_usd: float = 0.0) -> None:
        self._scores, self._cost_usd = {True: lacking, False: having}, cost_usd

    async def score(self, texts: Any, task: TextTask) -> TaskScore:
        return TaskScore(self._scores["skill:it" in texts], "", "", "r", 1, 10, self._cost_usd)

    async def close(self) -> None:
        pass


IT = parse_skill(
    "---\nname: it\ndescription: It.\n---\nDo it.\n",
    file="it",
    directory=Path("it"),
    category="user",
    origin=SkillOrigin.USER,
)


class NoCalls:
    messages = ()


async def test_a_skill_that_harms_is_said_to(tmp_path: Path) -> None:
    signal = Scored(having=0.25, lacking=0.75)
    evaluator = Evaluator(signal, Ledger(tmp_path, Spending(0)), 8)
    result = await run_trial(IT, signal.tasks, evaluator, lambda _: NoCalls())  # type: ignore[arg-type,return-value]
    assert result.verdict == "harms" and result.effect.mean == -0.5


async def test_money_that_is_spent_ends_it_with_what_was_compared(tmp_path: Path) -> None:
    signal = Scored(1, 0, cost_usd=0.01)
    evaluator = Evaluator(signal, Ledger(tmp_path, Spending(0, max_cost_usd=0.3)), 8)
    result = await run_trial(IT, signal.tasks, evaluator, lambda _: NoCalls())  # type: ignore[arg-type,return-value]
    assert result.tasks == 16
    poor = Evaluator(signal, Ledger(tmp_path / "poor", Spending(0, max_cost_usd=0.1)), 8)
    (tmp_path / "poor").mkdir()
    with pytest.raises(UsageError, match="too few"):
        await run_trial(IT, signal.tasks, poor, lambda _: NoCalls())  # type: ignore[arg-type,return-value]
