"""A small encyclopaedia of invented workshops and their founders, and questions about it.

Its facts are invented, so that answers must be looked up. A question needs one to three pages and has one
short answer. The corpus is always the same; the split is by question.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from hermes.envs.rewards.text import words
from hermes.envs.tasks.vocabulary import CITIES, COLOURS, PEOPLE, SUBJECTS, THINGS
from hermes.serving import HttpSettings, listen, serve_in_thread

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

_SEED = 20261115
_SIZE = 300


@dataclass(frozen=True, slots=True)
class Founder:
    name: str
    birth_city: str
    birth_year: int
    craft: str
    teacher: int
    """Index of the teacher's own workshop."""


@dataclass(frozen=True, slots=True)
class Workshop:
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
    """A question, its answer, and the pages that contain the answer together."""

    question: str
    answer: str
    pages: tuple[str, ...]
    """Titles, in the order in which they are followed."""

    @property
    def distractors(self) -> tuple[str, ...]:
        """The other answers that were possible, except what the question and its pages name."""
        subject = words(" ".join((self.question, *self.pages)))
        return tuple(
            value
            for value in _values_like(self.answer)
            if value != self.answer and not set(words(value)) <= set(subject)
        )

    @property
    def key(self) -> str:
        return self.question


@cache
def workshops() -> tuple[Workshop, ...]:
    rng = random.Random(_SEED)
    names = rng.sample([f"{a.capitalize()} {b.capitalize()} Works" for a in COLOURS for b in THINGS], _SIZE)
    people = rng.sample(PEOPLE, _SIZE)
    return tuple(
        Workshop(
            name,
            rng.choice(CITIES),
            rng.randint(1850, 1990),
            rng.choice(THINGS),
            Founder(
                person,
                rng.choice(CITIES),
                rng.randint(1800, 1840),
                rng.choice(SUBJECTS),
                (index + rng.randint(1, _SIZE - 1)) % _SIZE,
            ),
        )
        for index, (name, person) in enumerate(zip(names, people, strict=True))
    )


@cache
def pages() -> tuple[Page, ...]:
    shops = workshops()
    articles = []
    for shop in shops:
        founder = shop.founder
        articles.append(
            Page(
                page_path(shop.name),
                shop.name,
                f"{shop.name} is a workshop in {shop.city}. It was founded in {shop.year} by {founder.name}. "
                f"It is best known for one product, the {shop.product}.",
            )
        )
        teacher = shops[founder.teacher].founder.name
        articles.append(
            Page(
                page_path(founder.name),
                founder.name,
                f"{founder.name} was born in {founder.birth_city} in {founder.birth_year}, learned "
                f"{founder.craft} from {teacher}, and later founded {shop.name}.",
            )
        )
    return tuple(articles)


def page_path(title: str) -> str:
    return "/wiki/" + title.replace(" ", "_")


@cache
def _by_path() -> dict[str, Page]:
    return {page.path: page for page in pages()}


def page_at(path: str) -> Page | None:
    return _by_path().get(path)


def search(query: str, limit: int = 5) -> list[Page]:
    """Pages ranked by the number of query words they contain; words of the title count three times."""
    terms = set(words(query))
    scored = [(3 * len(terms & title) + len(terms & text), page) for title, text, page in _index()]
    best = sorted((entry for entry in scored if entry[0]), key=lambda entry: (-entry[0], entry[1].title))
    return [page for _, page in best[:limit]]


@cache
def _index() -> tuple[tuple[frozenset[str], frozenset[str], Page], ...]:
    return tuple((frozenset(words(page.title)), frozenset(words(page.text)), page) for page in pages())


@cache
def _values_like(value: str) -> tuple[str, ...]:
    """The values of the same kind: years, cities, things, people, subjects or workshops."""
    if value.isdecimal():
        return tuple(map(str, range(1700, 2100)))
    names = tuple(shop.name for shop in workshops())
    return next(
        (kind for kind in (CITIES, THINGS, PEOPLE, SUBJECTS, names) if value in kind), (*CITIES, *PEOPLE)
    )


_QuestionTemplate = Callable[[Workshop, Founder, Workshop], tuple[str, str, int]]
"""Workshop, its founder, the workshop of the founder's teacher → question, answer, pages needed."""

_QUESTIONS: tuple[_QuestionTemplate, ...] = (
    lambda shop, founder, teacher: (f"In which city is {shop.name}?", shop.city, 1),
    lambda shop, founder, teacher: (f"In which year was {shop.name} founded?", str(shop.year), 1),
    lambda shop, founder, teacher: (f"What product is {shop.name} best known for?", shop.product, 1),
    lambda shop, founder, teacher: (f"Who founded {shop.name}?", founder.name, 1),
    lambda shop, founder, teacher: (
        f"In which city was the founder of {shop.name} born?",
        founder.birth_city,
        2,
    ),
    lambda shop, founder, teacher: (
        f"In which year was the founder of {shop.name} born?",
        str(founder.birth_year),
        2,
    ),
    lambda shop, founder, teacher: (f"What did the founder of {shop.name} learn?", founder.craft, 2),
    lambda shop, founder, teacher: (f"Who taught the founder of {shop.name}?", teacher.founder.name, 2),
    lambda shop, founder, teacher: (
        f"Which workshop did the teacher of {founder.name} found?",
        teacher.name,
        2,
    ),
    lambda shop, founder, teacher: (
        f"In which city was the teacher of the founder of {shop.name} born?",
        teacher.founder.birth_city,
        3,
    ),
    lambda shop, founder, teacher: (
        f"In which year was the teacher of the founder of {shop.name} born?",
        str(teacher.founder.birth_year),
        3,
    ),
)


def make_lookup(rng: random.Random) -> Lookup:
    shops = workshops()
    shop = rng.choice(shops)
    teacher_shop = shops[shop.founder.teacher]
    template = rng.choice(_QUESTIONS)
    question, fact, page_count = template(shop, shop.founder, teacher_shop)
    path: Sequence[str] = (shop.name, shop.founder.name, teacher_shop.founder.name)
    if template is _QUESTIONS[8]:
        path = (shop.founder.name, teacher_shop.founder.name)
    return Lookup(question, fact, tuple(path[:page_count]))


class CorpusServer:
    """Serves from its own thread between `start` and `stop`; only this user is answered."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._listener = self._stack.enter_context(listen("127.0.0.1", 0))

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    @property
    def url(self) -> str:
        return self._listener.url

    def page_url(self, title: str) -> str:
        return f"{self.url}{quote(page_path(title))}"

    def start(self) -> None:
        settings = HttpSettings(grace_s=1)
        self._stack.enter_context(serve_in_thread(_application(), self._listener, settings, name="corpus"))

    def stop(self) -> None:
        self._stack.close()


def _application() -> ASGIApp:
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse
    from starlette.routing import Route

    async def find(request: Request) -> Response:
        query = request.query_params.get("q", "")
        results = [_result(request.headers["host"], page) for page in search(query)]
        return JSONResponse({"query": query, "results": results})

    async def show(request: Request) -> Response:
        page = page_at(request.scope["path"])
        if page is None:
            return PlainTextResponse("no such page", 404)
        title = escape(page.title)
        head = f"<!doctype html><html><head><title>{title}</title></head>"
        return HTMLResponse(
            f"{head}<body><article><h1>{title}</h1><p>{escape(page.text)}</p></article></body></html>"
        )

    return Starlette(routes=[Route("/search", find), Route("/{page:path}", show)])


def _result(host: str, page: Page) -> dict[str, str]:
    url = f"http://{host}{quote(page.path)}"
    return {"title": page.title, "url": url, "content": f"An article about {page.title}."}
