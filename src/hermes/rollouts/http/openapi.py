"""The description of the API: an OpenAPI document, and a page of it that loads nothing from elsewhere."""

from __future__ import annotations

import functools
import html
import json
from typing import NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from hermes import __version__
from hermes.core.json import JSONObject
from hermes.rollouts.schema import (
    MAX_LEASE_S,
    MIN_LEASE_S,
    EnvReference,
    EnvRegistration,
    LeaseReference,
    LeaseRenewal,
    Registration,
    ScoredData,
)

_TITLE = "Hermes trajectory API"
_REFERENCE = "#/components/schemas/{model}"


class Operation(NamedTuple):
    method: str
    path: str
    summary: str
    body: type[BaseModel] | None = None
    many: bool = False
    """The body is a list of `body`."""
    query: tuple[tuple[str, JSONObject, str], ...] = ()
    """Name, schema and meaning of each parameter."""
    headers: tuple[tuple[str, str], ...] = ()
    answers: tuple[int, ...] = (200,)
    content_type: str = "application/json"


_KEY = (("Idempotency-Key", "a second post with the same key is answered and not taken"),)
_LEASE = (
    (
        "lease_s",
        {"type": "number", "minimum": MIN_LEASE_S, "maximum": MAX_LEASE_S},
        "keep the batch for the trainer this long, until it is acknowledged",
    ),
    (
        "lease_id",
        {"type": "integer", "minimum": 1, "maximum": 2**63},
        "serve this outstanding batch once more",
    ),
)
OPERATIONS = (
    Operation("get", "/", "Name of the API."),
    Operation("post", "/register", "A trainer sets up the run.", Registration),
    Operation("post", "/register-env", "An environment joins the run.", EnvRegistration),
    Operation("post", "/disconnect-env", "An environment leaves the run.", EnvReference),
    Operation("get", "/wandb_info", "Group and project of the run."),
    Operation("get", "/info", "Batch size and longest sequence of the run."),
    Operation(
        "get", "/batch", "The next batch, or null and why there is none.", query=_LEASE, answers=(200, 404)
    ),
    Operation("post", "/batch/ack", "A leased batch has been used.", LeaseReference, answers=(200, 404)),
    Operation("post", "/batch/renew", "Leased batches are still in use.", LeaseRenewal),
    Operation("get", "/latest_example", "The group that joined the queue last."),
    Operation("post", "/scored_data", "One group.", ScoredData, headers=_KEY, answers=(200, 404, 503)),
    Operation(
        "post",
        "/scored_data_list",
        "Several groups, all or none.",
        ScoredData,
        True,
        (),
        _KEY,
        (200, 404, 503),
    ),
    Operation("get", "/status", "Step, queue, rates, leases and environments."),
    Operation(
        "get",
        "/status-env",
        "What an environment polls; its id is a JSON body.",
        EnvReference,
        answers=(200, 404),
    ),
    Operation("get", "/reset_data", "Forgets the run and everything queued.", content_type="text/plain"),
    Operation("get", "/metrics", "For Prometheus.", content_type="text/plain"),
)
_MEANINGS = {
    200: "as asked",
    400: "not the gzip it claims to be",
    401: "a token is needed",
    403: "not from here",
    404: "unknown id",
    413: "too large",
    422: "not understood; `detail` names the field",
    503: "full, or the disk failed; try again later",
}


@functools.cache
def document() -> JSONObject:
    models = (Registration, EnvRegistration, EnvReference, LeaseReference, LeaseRenewal, ScoredData)
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    paths: JSONObject = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": _TITLE, "version": __version__},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{}, {"bearer": []}, {"basic": []}],
    }


def _described(operation: Operation) -> JSONObject:
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": schema, "description": meaning}
        for name, schema, meaning in operation.query
    ]
    parameters += [
        {
            "name": name,
            "in": "header",
            "required": False,
            "schema": {"type": "string"},
            "description": meaning,
        }
        for name, meaning in operation.headers
    ]
    described: JSONObject = {
        "operationId": f"{operation.method}{operation.path.replace('/', '_').replace('-', '_')}",
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": _MEANINGS[200], "content": {operation.content_type: {}}},
            **{str(code): {"description": _MEANINGS[code]} for code in (*operation.answers[1:], 401, 403)},
        },
    }
    if operation.body is not None:
        body: JSONObject = {"$ref": _REFERENCE.format(model=operation.body.__name__)}
        body = {"type": "array", "items": body} if operation.many else body
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if operation.body is not None or operation.query:
        described["responses"] |= {str(code): {"description": _MEANINGS[code]} for code in (400, 413, 422)}
    return described


@functools.cache
def page() -> str:
    rows = "".join(
        f"<tr><td>{o.method.upper()}</td><td><code>{html.escape(o.path)}</code></td>"
        f"<td>{html.escape(o.summary)}</td><td>{_body(o)}</td></tr>"
        for o in OPERATIONS
    )
    schemas = "".join(
        f"<h2 id='{name}'>{name}</h2><pre>{html.escape(json.dumps(schema, indent=2))}</pre>"
        for name, schema in document()["components"]["schemas"].items()
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{_TITLE}</title>"
        "<style>body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "td,th{text-align:left;padding:.2rem .8rem .2rem 0;vertical-align:top}</style>"
        f"<h1>{_TITLE}</h1><p>The same as a document: <a href=/openapi.json>/openapi.json</a></p>"
        f"<table><tr><th>Method<th>Path<th>What<th>Body</tr>{rows}</table>{schemas}</html>"
    )


def _body(operation: Operation) -> str:
    if operation.body is None:
        return ""
    name = operation.body.__name__
    return f"<a href='#{name}'>{'list of ' if operation.many else ''}{name}</a>"
