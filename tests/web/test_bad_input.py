"""Bad input in every form field, every field of a query string and every part of an address, of every route.

The table names, for each route, its fields with a value that is right. A route or field that is added without
a line here fails the test. Each value is replaced in turn by each bad one: the response is never a 5xx,
never a traceback, and 4xx with a sentence unless the field takes any text.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, quote_from_bytes

import pytest

from hermes.web import app
from hermes.web.pages import sign_in
from hermes.web.runs import fields as form_fields
from tests.web.samples import fill
from tests.web.site import Reply, WebSite, open_site
from tests.web.training import fill_runs

BAD: dict[str, bytes] = {
    "two minus signs": b"--5",
    "negative": b"-1",
    "too large": b"99999999999999999999",
    "not a number": b"nan",
    "superscript": "5²".encode(),
    "NUL": b"a\x00b",
    "invalid UTF-8": b"\xff\xfe",
    "surrogate": b"\xed\xa0\x80",
    "path": b"../../etc/passwd",
    "markup": b"<script>alert(1)</script>",
    "reordered": "\u202eabc".encode(),
    "option": b"--help",
    "condition": b"nothing>=x",
    "long": b"x" * 25_000,
}
FREE = "free"
"""Takes any text that is not too long and has no NUL."""
CHECKED = "checked"
"""Every bad value is refused."""
FLAG = "flag"
"""Only `1` means yes."""


@dataclass(frozen=True)
class Field:
    right: str
    kind: str = CHECKED
    refused: tuple[str, ...] = ()
    """Of a field that takes any text: what it refuses all the same."""


FREE_TEXT = Field("x", FREE, ("NUL", "long"))
QUERY = Field("pytest", FREE, ("NUL", "long", "condition"))
ID = Field("{id}")
RUN = Field("{run}")
MODE = Field("thumb")
EVENT = Field("0f0f0f0f-0f0f-4f0f-8f0f-0f0f0f0f0f0f", FREE, ("NUL", "long", "path", "markup", "option"))
NUMBER = Field("0")
PATH = "/trajectories/{trajectory:str}"
STEP = f"{PATH}/steps/{{step:int}}"
ROUTES: dict[str, dict[str, Field]] = {
    "GET /": {},
    "GET /trajectories": {"q": QUERY, "before": Field("20")},
    "GET /trajectories/count": {"q": QUERY},
    f"GET {PATH}": {"trajectory": ID, "find": FREE_TEXT, "step": NUMBER, "from": NUMBER},
    f"GET {PATH}/download": {"trajectory": ID},
    f"GET {PATH}/id": {"trajectory": ID},
    f"GET {STEP}": {"trajectory": ID, "step": NUMBER, "part": NUMBER, "view": Field("page")},
    f"GET {STEP}/raw": {"trajectory": ID, "step": NUMBER},
    f"GET {STEP}/tokens": {"trajectory": ID, "step": Field("2")},
    f"GET {STEP}/images/{{position:int}}": {"trajectory": ID, "step": NUMBER, "position": NUMBER},
    "GET /compare": {"id": ID},
    "GET /rate": {
        "mode": MODE,
        "q": QUERY,
        "queue": Field(""),
        "undone": FREE_TEXT,
        "trajectory": ID,
        "other": Field("", FREE, ("NUL", "long")),
        "besides": FREE_TEXT,
    },
    "POST /rate": {
        "mode": MODE,
        "q": FREE_TEXT,
        "queue": Field(""),
        "id": EVENT,
        "decision": Field("good"),
        "trajectory": ID,
        "other": Field("", FREE, ("NUL", "long")),
        "step": Field(""),
        "comment": FREE_TEXT,
        "elapsed_ms": NUMBER,
    },
    "GET /rate/item": {"mode": MODE, "q": QUERY, "queue": Field(""), "trajectory": ID, "besides": FREE_TEXT},
    "POST /rate/undo": {"event": Field(""), "id": EVENT},
    "GET /rate/rows": {},
    "POST /rate/queues": {"name": FREE_TEXT, "rule": Field("random"), "mode": MODE, "q": QUERY},
    "POST /rate/rater": {"rater": Field("ben", FREE, ("NUL", "long", "path", "markup")), "mode": MODE},
    "POST /rate/guidelines": {"guidelines": FREE_TEXT, "mode": MODE},
    "GET /runs/new": {"environment": Field("")},
    "POST /runs/new": {
        "environment": Field("nothing"),
        "unlock": Field("1", FLAG),
        "action": Field("start"),
    },
    "POST /runs/alerts/add": {"rule": Field("kl/reference > 0.5")},
    "POST /runs/alerts/remove": {"rule": Field("kl/reference > 0.5")},
    "GET /trajectories/{trajectory:str}/events": {"trajectory": Field("nothing"), "after": NUMBER},
    "GET /runs": {},
    "GET /runs/events": {},
    "GET /runs/curves": {"id": RUN, "name": FREE_TEXT, "smooth": Field("50")},
    "GET /runs/diff": {"id": RUN},
    "GET /runs/{run:str}/events": {"run": Field("nothing"), "after": NUMBER},
    "GET /runs/{run:str}/steps/{step:int}": {"run": RUN, "step": Field("3")},
    "POST /runs/{run:str}/stop": {"run": RUN, "now": Field("1", FLAG)},
    "POST /runs/{run:str}/weights": {"run": RUN, "format": Field("peft"), "step": Field("50")},
    "GET /runs/{run:str}": {"run": RUN, "with": RUN},
    "GET /jobs/{job:str}": {"job": Field("0123456789abcdef")},
    "POST /jobs/{job:str}/stop": {"job": Field("0123456789abcdef")},
    "GET /batches": {},
    "GET /batches/{run:str}": {"run": Field("batch-1")},
    "GET /skills/drafts/{draft:str}": {"draft": Field("nothing")},
    "POST /skills/drafts/{draft:str}": {
        "draft": Field("nothing"),
        "action": Field("accept"),
        "text": FREE_TEXT,
    },
    "GET /environments": {},
    "POST /environments/{action:str}": {"action": Field("check"), "environment": Field("nothing")},
    "GET /datasets": {
        "format": Field("sharegpt"),
        "q": QUERY,
        "id": ID,
        "all": Field("1", FLAG),
        "preview": Field("1", FLAG),
    },
    "POST /datasets": {
        "format": Field("sharegpt"),
        "q": QUERY,
        "ids": ID,
        "all": Field("1", FLAG),
    },
    "GET /datasets/files/{name:str}": {"name": Field("nothing.jsonl")},
    "GET /policies": {},
    "POST /policies/promote": {"policy": Field("nothing"), "reason": FREE_TEXT},
    "POST /policies/rollback": {"from": Field("base")},
    "GET /skills": {"q": FREE_TEXT},
    "GET /skills/{skill:path}": {"skill": Field("axolotl")},
    "POST /sign-in": {"token": Field("x", FREE)},
}
STARTED = ("POST /datasets", "POST /runs/{run:str}/weights")
"""With right values these start a process: of their fields only bad values that are refused are sent."""


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WebSite, dict[str, str]]]:
    home = tmp_path_factory.mktemp("bad") / "home"
    ids = fill(home, 12)
    run, _ = fill_runs(home)
    with open_site(home) as site:
        yield site, {"id": ids[5], "run": run}


def test_the_table_has_every_route_and_every_field() -> None:
    assert {f"{method} {path}" for method, path, _ in app.PAGES} | {"POST /sign-in"} == set(ROUTES)
    read: set[str] = set()
    folder = Path(inspect.getfile(sign_in)).parent
    for path in (*folder.glob("*.py"), Path(inspect.getfile(form_fields))):
        read |= set(_field_names(path.read_text()))
    assert read <= {name for fields in ROUTES.values() for name in fields}


def _field_names(source: str) -> Iterator[str]:
    """The names that handlers read from a request."""
    readers = {"text", "texts", "integer", "choice", "field", "form_integer", "get"}
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        owner = ast.unparse(node.func.value)
        constant = node.args[0]
        if (
            node.func.attr in readers
            and owner in ("request", "request.query", "request.form")
            and isinstance(constant, ast.Constant)
        ):
            yield str(constant.value)


@pytest.mark.parametrize("route", [name for name, fields in ROUTES.items() if fields])
def test_bad_values_get_a_page_with_a_sentence(stocked: tuple[WebSite, dict[str, str]], route: str) -> None:
    site, names = stocked
    fields = ROUTES[route]
    problems = []
    for name, field in fields.items():
        for label, value in BAD.items():
            refused = field.kind == CHECKED or label in field.refused
            if route in STARTED and not refused:
                continue
            right = {key: entry.right.format(**names).encode() for key, entry in fields.items()}
            reply = send(site, route, right | {name: value})
            if problem := _problem(reply, refused):
                problems.append(f"{name} = {label}: {problem}")
    assert problems == []


def send(site: WebSite, route: str, values: dict[str, bytes]) -> Reply:
    method, _, template = route.partition(" ")
    rest = dict(values)

    def fill_in(match: re.Match[str]) -> str:
        return quote(quote_from_bytes(rest.pop(match[1]), safe=""), safe="%")

    path = re.sub(r"\{(\w+):\w+\}", fill_in, template)
    body = "&".join(f"{key}={quote_from_bytes(value, safe='')}" for key, value in rest.items())
    if method == "POST":
        headers = {"content-type": "application/x-www-form-urlencoded", "origin": site.url}
        return site.send("POST", path, body.encode(), headers)
    return site.send("GET", f"{path}?{body}", None, {})


def _problem(reply: Reply, refused: bool) -> str:
    if reply.status >= 500 or "Traceback" in reply.text:
        return f"{reply.status}: {reply.text[:200]}"
    if refused and not 400 <= reply.status < 500:
        return f"status {reply.status}"
    if reply.status >= 400 and not re.search(r"<h1>.{10,}</h1>", reply.text):
        return f"{reply.status} without a sentence"
    return ""
