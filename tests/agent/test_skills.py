"""Skills in a conversation: a short list in the prompt, opened by the model, written by it with consent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hermes.agent.build import RolloutPlan, UserCallbacks, open_writer, system_prompt
from hermes.agent.chat import Conversation
from hermes.core import Source, StepKind
from hermes.models.local.bundled import model_folder
from hermes.models.open import open_model
from hermes.safety.approval import Answer
from hermes.skills import list_skills
from tests.agent.conftest import World
from tests.fakes.provider import FakeProvider, text, tool_calls
from tests.skills.conftest import skill_text

MOST_TOKENS = 30


def person(actions: list[str]) -> UserCallbacks:
    """Someone who agrees to every change of a skill and remembers what was shown."""

    async def approve(kind: str, action: str) -> Answer:
        actions.append(action)
        return "once"

    async def answer(question: str, choices: tuple[str, ...]) -> str:
        return ""

    return UserCallbacks(approve, answer, lambda line: None)


@asynccontextmanager
async def chat(world: World, actions: list[str]) -> AsyncIterator[Conversation]:
    plan = RolloutPlan(toolsets=("skills",), user=person(actions))
    config = world.config()
    model = open_model(config, "custom/test-model", world.provider.base_url)
    with open_writer(config) as writer:
        try:
            async with Conversation(config, writer, model, plan, Source.CHAT) as conversation:
                yield conversation
        finally:
            await model.close()


async def test_the_model_is_told_of_every_skill_and_opens_the_one_that_fits(tmp_path: Path) -> None:
    script = [tool_calls([("skill_view", {"name": "axolotl"})]), text("Write config.yaml first.")]
    with FakeProvider(script) as provider:
        world = World(tmp_path / "home", provider)
        async with chat(world, []) as conversation:
            async for _ in conversation.send("Fine-tune a model with Axolotl on my exported data."):
                pass
            trajectory_id = conversation.trajectory_id
        first, second = (post.json["messages"] for post in provider.posts[:2])
    skills = list_skills(world.home).skills
    lines = [line for line in first[0]["content"].splitlines() if line.startswith("- ")]
    assert lines == [f"- {skill.name}: {skill.listing}" for skill in skills]
    shown = json.loads(second[-1]["content"])
    assert shown["name"] == "axolotl" and shown["content"] == list_skills(world.home).find("axolotl").body
    stored = world.stored(trajectory_id)
    assert [step.kind.value for step in stored.steps] == ["input", "input", "model", "tool", "model"]


async def test_the_model_creates_and_edits_a_skill_and_the_person_sees_the_change(tmp_path: Path) -> None:
    first, second = skill_text("kiln"), skill_text("kiln", body="Heat it slowly.")
    script = [
        tool_calls([("skill_manage", {"action": "create", "name": "kiln", "content": "no front matter"})]),
        tool_calls([("skill_manage", {"action": "create", "name": "kiln", "content": first})]),
        tool_calls([("skill_manage", {"action": "edit", "name": "kiln", "content": second})]),
        text("I keep it as the skill kiln."),
    ]
    actions: list[str] = []
    with FakeProvider(script) as provider:
        world = World(tmp_path / "home", provider)
        async with chat(world, actions) as conversation:
            async for _ in conversation.send("Remember how to fire a kiln."):
                pass
            trajectory_id = conversation.trajectory_id
    results = [step.result for step in world.stored(trajectory_id).steps if step.kind is StepKind.TOOL]
    assert [result.ok for result in results if result] == [False, True, True]
    assert list_skills(world.home).find("kiln").body == "Heat it slowly.\n"
    assert actions[0] == f"create the skill 'kiln':\n{first}"
    assert "-Do it." in actions[1] and "+Heat it slowly." in actions[1]


def test_the_listing_costs_at_most_thirty_tokens_a_skill(bundled_home: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder(bundled_home))
    skills = [(skill.name, skill.listing) for skill in list_skills(bundled_home).skills]
    without, with_skills = (len(tokenizer.encode(system_prompt((), None, listed))) for listed in ((), skills))
    assert (with_skills - without) / len(skills) <= MOST_TOKENS
    longest = {name: len(tokenizer.encode(f"- {name}: {line}\n")) for name, line in skills}
    assert {name: count for name, count in longest.items() if count > MOST_TOKENS} == {}
