"""Short writing instructions without a right answer, for rewards that come from a reward model."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hermes.envs.tasks.vocabulary import CITIES, COLOURS, PEOPLE, SUBJECTS, THINGS

_FORMS = (
    "Write a two-sentence thank-you note to {person} for the {colour} {thing}.",
    "Explain {subject} to a child in one short paragraph.",
    "Describe a {colour} {thing} so that somebody in {city} would want to buy it.",
    "Give {person} three tips for a first day of {subject}.",
    "Write a polite message to {person}, saying that the {thing} will arrive in {city} a day late.",
    "Tell a four-sentence story about {person} and a lost {thing} in {city}.",
    "Suggest a plan for an afternoon in {city} with a friend who loves {subject}.",
    "Politely decline {person}'s offer to trade a {thing} for lessons in {subject}.",
)


@dataclass(frozen=True, slots=True)
class Instruction:
    text: str

    @property
    def key(self) -> str:
        return self.text


def instruction(rng: random.Random) -> Instruction:
    return Instruction(
        rng.choice(_FORMS).format(
            person=rng.choice(PEOPLE),
            colour=rng.choice(COLOURS),
            thing=rng.choice(THINGS),
            city=rng.choice(CITIES),
            subject=rng.choice(SUBJECTS),
        )
    )
