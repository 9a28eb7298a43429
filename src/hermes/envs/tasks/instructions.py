"""Short writing instructions without a right answer, for environments where a reward model judges."""

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


def instruction(chance: random.Random) -> Instruction:
    return Instruction(
        chance.choice(_FORMS).format(
            person=chance.choice(PEOPLE),
            colour=chance.choice(COLOURS),
            thing=chance.choice(THINGS),
            city=chance.choice(CITIES),
            subject=chance.choice(SUBJECTS),
        )
    )
