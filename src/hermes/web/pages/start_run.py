"""Starting a run from a form: fields and locks of `hermes rl config`, checked by `hermes rl start`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from starlette.responses import RedirectResponse, Response

from hermes.errors import HermesError
from hermes.web.jobs import run_hermes
from hermes.web.requests import WebRequest
from hermes.web.responses import PageError
from hermes.web.runs.fields import FormField, find_listed, read_fields

_PREFIX = "field."
_ACTIONS = {"start": "Run", "preflight": "Preflight"}
_CODE = re.compile(r"\.(py|so)\b", re.IGNORECASE)


def show(request: WebRequest) -> Response:
    return _form(request, request.text("environment", max_chars=200))


def submit(request: WebRequest) -> Response:
    """Starts the run, or shows the form again with what is wrong."""
    action = request.field("action", max_chars=40) or "start"
    if action not in _ACTIONS:
        raise PageError(400, f"a form cannot be sent to '{action}'", f"It is one of: {', '.join(_ACTIONS)}.")
    name = request.field("environment", max_chars=200)
    environment = find_listed(request.context.environments(), name)
    unlock = request.field("unlock") == "1"
    fields = read_fields(request.context.home, name)
    edits = _edits(request, fields, unlock)
    sources = [str(environment.path), *_named_code(fields, edits)]
    back = f"/runs/new?{urlencode({'environment': name})}"
    question = request.confirmation(f"{_ACTIONS[action]} of {name}", sources, back)
    if question is not None:
        return question
    arguments = ["rl", "start", "--env", name, *(["--unlock"] if unlock else []), "--json"]
    for field, value in edits.items():
        arguments += ["--set", f"{field}={value}"]
    if action == "preflight":
        return _preflight(request, name, edits, unlock)
    try:
        run_id = json.loads(run_hermes(request.context.home, arguments))["run_id"]
    except HermesError as error:
        return _form(request, name, edits, error)
    return RedirectResponse(f"/runs/{run_id}", 303)


def _preflight(request: WebRequest, name: str, edits: dict[str, str], unlock: bool) -> Response:
    """Samples a few groups from the policy that it starts from, in a job, with the values of the form."""
    try:
        run_hermes(request.context.home, ["rl", "select", name])
        for field, value in edits.items():
            run_hermes(
                request.context.home, ["rl", "config", field, value, *(["--unlock"] if unlock else [])]
            )
    except HermesError as error:
        return _form(request, name, edits, error)
    job = request.context.jobs.start(
        f"Preflight of {name}", ("rl", "preflight"), f"/runs/new?{urlencode({'environment': name})}"
    )
    return RedirectResponse(f"/jobs/{job.job_id}", 303)


def _form(
    request: WebRequest, name: str, edits: dict[str, str] | None = None, problem: HermesError | None = None
) -> Response:
    discovery = request.context.environments()
    fields: list[FormField] = []
    if name:
        environment = find_listed(discovery, name)
        changes = edits or {}
        fields = [
            replace(field, value=changes.get(field.name, field.value))
            for field in read_fields(request.context.home, environment.name)
        ]
    values: dict[str, Any] = {
        "environments": discovery.environments,
        "environment": name,
        "fields": fields,
        "problem": problem,
        "unlock": request.form.get("unlock") == "1",
    }
    return request.page("run_new.html", values, 400 if problem else 200)


def _named_code(fields: list[FormField], edits: dict[str, str]) -> list[str]:
    """The fields by which a file of code is named, or a lock is lifted, with their values."""
    values = {field.name: edits.get(field.name, field.value) for field in fields}
    locked = {field.name for field in fields if field.lock is not None}
    return [
        f"{name} = {value}"
        for name, value in values.items()
        if _CODE.search(value) or (name in edits and name in locked)
    ]


def _edits(request: WebRequest, fields: list[FormField], unlock: bool) -> dict[str, str]:
    """The fields that are changed. A locked field is left alone unless locks are lifted."""
    by_name = {field.name: field for field in fields}
    edits: dict[str, str] = {}
    for key in request.form:
        if not key.startswith(_PREFIX):
            continue
        field = by_name.get(key.removeprefix(_PREFIX))
        if field is None:
            raise PageError(
                400, f"there is no field '{key.removeprefix(_PREFIX)[:80]}'", "Open the form again."
            )
        value = request.field(key, max_chars=4000)
        if value != field.value and (field.lock is None or unlock):
            edits[field.name] = value
    return edits


ROUTES = (("GET", "/runs/new", show), ("POST", "/runs/new", submit))
