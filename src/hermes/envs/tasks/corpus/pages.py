"""A small encyclopaedia of invented workshops and the people who founded them, and questions about it.

Nothing in it is true of the world, so that answers must be looked up. Questions take one to three pages; each
has one short answer. The corpus is always the same; the split is by question.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from hermes.envs.rewards.text import words
from hermes.envs.tasks.vocabulary import CITIES, COLOURS, PEOPLE, SUBJECTS, THINGS

_SEED = 20261115
_SIZE = 300


@dataclass(frozen=True, slots=True)
class Founder:
    name: str
    birth_city: str
    birth_year: int
    craft: str
    teacher: int
    """Place of the teacher among the founders."""


@dataclass(frozen=True, slots=True)
class CorpusFiles:
    name: str
    city: str
    year: int
    product: str
    founder: Founder


@dataclass(frozen=True, slots=True)
class Page:
    path: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Lookup:
    """A question, its answer and the pages that together hold it."""

    question: str
    answer: str
    pages: tuple[str, ...]
    """Titles, in the order in which one finds them."""

    @property
    def key(self) -> str:
        return self.question


@cache
def workshops() -> tuple[CorpusFiles, ...]:
    chance = random.Random(_SEED)
    names = chance.sample(
        [f"{a.capitalize()} {b.capitalize()} Works" for a in COLOURS for b in THINGS], _SIZE
    )
    people = chance.sample(PEOPLE, _SIZE)
    return tuple(
        CorpusFiles(
            name,
            chance.choice(CITIES),
            chance.randint(1850, 1990),
            chance.choice(THINGS),
            Founder(
                person,
                chance.choice(CITIES),
                chance.randint(1800, 1840),
                chance.choice(SUBJECTS),
                (index + chance.randint(1, _SIZE - 1)) % _SIZE,
            ),
        )
        for index, (name, person) in enumerate(zip(names, people, strict=True))
    )


@cache
def pages() -> tuple[Page, ...]:
    every = workshops()
    found = []
    for shop in every:
        founder = shop.founder
        found.append(
            Page(
                path_of(shop.name),
                shop.name,
                f"{shop.name} is a workshop in {shop.city}. It was founded in {shop.year} by {founder.name}. "
                f"It is best known for one product, the {shop.product}.",
            )
        )
        teacher = every[founder.teacher].founder.name
        found.append(
            Page(
                path_of(founder.name),
                founder.name,
                f"{founder.name} was born in {founder.birth_city} in {founder.birth_year}, learned "
                f"{founder.craft} from {teacher}, and later founded {shop.name}.",
            )
        )
    return tuple(found)


def path_of(title: str) -> str:
    return "/wiki/" + title.replace(" ", "_")


@cache
def _by_path() -> dict[str, Page]:
    return {page.path: page for page in pages()}


def page_at(path: str) -> Page | None:
    return _by_path().get(path)


def search(query: str, limit: int = 5) -> list[Page]:
    """Pages by how many of the query's words they hold; words of the title count three times."""
    wanted = set(words(query))
    scored = [(3 * len(wanted & title) + len(wanted & text), page) for title, text, page in _index()]
    best = sorted((entry for entry in scored if entry[0]), key=lambda entry: (-entry[0], entry[1].title))
    return [page for _, page in best[:limit]]


@cache
def _index() -> tuple[tuple[frozenset[str], frozenset[str], Page], ...]:
    return tuple((frozenset(words(page.title)), frozenset(words(page.text)), page) for page in pages())


_Ask = Callable[[CorpusFiles, Founder, CorpusFiles], tuple[str, str, int]]
"""Workshop, its founder, the workshop of the founder's teacher → question, answer, pages needed."""

_QUESTIONS: tuple[_Ask, ...] = (
    lambda shop, who, other: (f"In which city is {shop.name}?", shop.city, 1),
    lambda shop, who, other: (f"In which year was {shop.name} founded?", str(shop.year), 1),
    lambda shop, who, other: (f"What product is {shop.name} best known for?", shop.product, 1),
    lambda shop, who, other: (f"Who founded {shop.name}?", who.name, 1),
    lambda shop, who, other: (f"In which city was the founder of {shop.name} born?", who.birth_city, 2),
    lambda shop, who, other: (f"In which year was the founder of {shop.name} born?", str(who.birth_year), 2),
    lambda shop, who, other: (f"What did the founder of {shop.name} learn?", who.craft, 2),
    lambda shop, who, other: (f"Who taught the founder of {shop.name}?", other.founder.name, 2),
    lambda shop, who, other: (f"Which workshop did the teacher of {who.name} found?", other.name, 2),
    lambda shop, who, other: (
        f"In which city was the teacher of the founder of {shop.name} born?",
        other.founder.birth_city,
        3,
    ),
    lambda shop, who, other: (
        f"In which year was the teacher of the founder of {shop.name} born?",
        str(other.founder.birth_year),
        3,
    ),
)


def make_lookup(chance: random.Random) -> Lookup:
    every = workshops()
    shop = chance.choice(every)
    other = every[shop.founder.teacher]
    ask = chance.choice(_QUESTIONS)
    question, answer, needed = ask(shop, shop.founder, other)
    way: Sequence[str] = (shop.name, shop.founder.name, other.founder.name)
    if ask is _QUESTIONS[8]:
        way = (shop.founder.name, other.founder.name)
    return Lookup(question, answer, tuple(way[:needed]))
