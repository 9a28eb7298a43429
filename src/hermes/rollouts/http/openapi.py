"""The API's description, derived from its table of operations: an OpenAPI document, and an HTML page of it.

The page loads nothing from elsewhere.
"""

from __future__ import annotations

import html
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from hermes import __version__
from hermes.core.json import JSONObject

_TITLE = "Hermes trajectory API"
_REFERENCE = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path: its route and its description."""

    method: str
    path: str
    summary: str
    handler: Callable[[Any, Request], Awaitable[Response]]
    """A method of the class that holds the handlers."""
    body: type[BaseModel] | None = None
    many: bool = False
    """The body is a list of `body`."""
    query: tuple[tuple[str, JSONObject, str], ...] = ()
    """Name, schema and description of each parameter."""
    headers: tuple[tuple[str, str], ...] = ()
    """Name and description of each request header."""
    statuses: tuple[int, ...] = ()
    """Status codes in addition to those of every operation with a body or query."""
    content_type: str = "application/json"
    include_in_schema: bool = True


_STATUS_MEANINGS = {
    200: "success",
    400: "the body is not valid gzip",
    401: "a token is required",
    403: "the request's host or origin is not allowed",
    404: "unknown id",
    413: "the body is too large",
    422: "invalid request; `detail` names the field",
    503: "the queue is full, or the disk failed; try again later",
}


def document(operations: Sequence[Operation]) -> JSONObject:
    """The OpenAPI document."""
    documented = [operation for operation in operations if operation.include_in_schema]
    models = dict.fromkeys(operation.body for operation in documented if operation.body is not None)
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    paths: JSONObject = {}
    for operation in documented:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
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


def _describe(operation: Operation) -> JSONObject:
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": schema, "description": text}
        for name, schema, text in operation.query
    ]
    parameters += [
        {
            "name": name,
            "in": "header",
            "required": False,
            "schema": {"type": "string"},
            "description": text,
        }
        for name, text in operation.headers
    ]
    description: JSONObject = {
        "operationId": f"{operation.method.lower()}{operation.path.replace('/', '_').replace('-', '_')}",
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": _STATUS_MEANINGS[200], "content": {operation.content_type: {}}},
            **{
                str(code): {"description": _STATUS_MEANINGS[code]} for code in (*operation.statuses, 401, 403)
            },
        },
    }
    if operation.body is not None:
        body: JSONObject = {"$ref": _REFERENCE.format(model=operation.body.__name__)}
        body = {"type": "array", "items": body} if operation.many else body
        description["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if operation.body is not None or operation.query:
        description["responses"] |= {
            str(code): {"description": _STATUS_MEANINGS[code]} for code in (400, 413, 422)
        }
    return description


def page(operations: Sequence[Operation]) -> str:
    """The same as HTML."""
    rows = "".join(
        f"<tr><td>{operation.method}</td><td><code>{html.escape(operation.path)}</code></td>"
        f"<td>{html.escape(operation.summary)}</td><td>{_body_link(operation)}</td></tr>"
        for operation in operations
        if operation.include_in_schema
    )
    schemas = "".join(
        f"<h2 id='{name}'>{name}</h2><pre>{html.escape(json.dumps(schema, indent=2))}</pre>"
        for name, schema in document(operations)["components"]["schemas"].items()
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{_TITLE}</title>"
        "<style>body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "td,th{text-align:left;padding:.2rem .8rem .2rem 0;vertical-align:top}</style>"
        f"<h1>{_TITLE}</h1><p>As an OpenAPI document: <a href=/openapi.json>/openapi.json</a></p>"
        f"<table><tr><th>Method<th>Path<th>Summary<th>Body</tr>{rows}</table>{schemas}</html>"
    )


def _body_link(operation: Operation) -> str:
    if operation.body is None:
        return ""
    name = operation.body.__name__
    return f"<a href='#{name}'>{'list of ' if operation.many else ''}{name}</a>"
