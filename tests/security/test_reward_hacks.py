"""Answers that earned a reward without the work, each as it was found."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from hermes.core import ToolCall
from hermes.envs.builtin.calculator import CalculatorEnv, _progress, one_step
from hermes.envs.modes.commandline import build, parse
from hermes.envs.rewards.text import mentions
from hermes.envs.tasks.corpus.pages import make_lookup, workshops
from hermes.envs.tasks.split import Split, draw
from hermes.envs.tasks.vocabulary import CITIES, PEOPLE, SUBJECTS, THINGS

LOOKUPS = list(islice(draw(make_lookup, Split.TRAIN, 3), 200))


@pytest.mark.parametrize("pool", [CITIES, PEOPLE, SUBJECTS, THINGS, tuple(map(str, range(1800, 1991)))])
def test_a_list_of_candidates_is_no_answer(pool: tuple[str, ...]) -> None:
    for item in LOOKUPS:
        rng, distractors = random.Random(item.question), item.distractors
        for count in (2, 5, 40):
            guesses = rng.sample(list(pool), min(count, len(pool)))
            listed = ", ".join([*guesses, item.answer])
            others = [guess for guess in guesses if guess in distractors]
            if others or len(guesses) >= 40:
                assert mentions(listed, item.answer, distractors, max_words=40).value == 0.0


def test_a_right_answer_in_a_sentence_passes() -> None:
    for item in LOOKUPS:
        assert mentions(item.answer, item.answer, item.distractors).success
        sentence = f"{item.question.rstrip('?')}: {item.answer}."
        assert mentions(sentence, item.answer, item.distractors).success, sentence


def test_the_whole_encyclopaedia_is_no_answer() -> None:
    text = " ".join(shop.name for shop in workshops())
    assert mentions(text, workshops()[0].name).value == 0.0


def call(expression: str) -> ToolCall:
    return ToolCall("c", "calculator", f'{{"expression": "{expression}"}}')


def test_a_flood_of_guesses_is_worth_no_more_than_an_attempt() -> None:
    item = one_step(random.Random(5))
    guesses = [call(str(int(item.answer) + offset)) for offset in range(-50, 50)]
    assert _progress(item, guesses) == pytest.approx(0.1)
    assert _progress(item, [call(item.answer)]) == pytest.approx(0.3)
    assert _progress(item, [call(item.expression)]) == pytest.approx(0.6)
    assert _progress(item, [call(item.expression)] * 3) == pytest.approx(0.1)


class RegistrationReached(Exception):
    """The served environment has its items and would join the run now."""


class UnregisteredEnv(CalculatorEnv):
    async def register_env(self) -> None:
        raise RegistrationReached


async def served_items(*flags: str) -> list[Any]:
    plain = ["--openai.health_check", "false", "--env.use_wandb", "false", "--env.train_size", "20"]
    env, _ = build(UnregisteredEnv, parse(["serve", *plain, *flags]))
    with pytest.raises(RegistrationReached):
        await env.env_manager()
    return [await env.get_next_item() for _ in range(20)]


async def test_no_served_run_has_items_that_a_policy_can_generate_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    public = await served_items("--env.seed", "0")
    assert public == await served_items("--env.seed", "0"), "a seed that a person sets holds"
    first, second = await served_items(), await served_items()
    prompts = [{str(item) for item in items} for items in (public, first, second)]
    assert all(len(texts) == 20 for texts in prompts)
    assert max(len(prompts[a] & prompts[b]) for a, b in ((0, 1), (0, 2), (1, 2))) < 10
