"""The operations of an API: its routes, and its description as an OpenAPI document and an HTML page.

A method that answers a request says so itself, with `@operation`. The page loads nothing from elsewhere.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from hermes import __version__
from hermes.core.json import JSONObject

JSON = "application/json"
_REFERENCE = "#/components/schemas/{model}"
_PATH_PARAMETER = re.compile(r"{(\w+)(:\w+)?}")


Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path: its route and its description."""

    method: str
    path: str
    summary: str
    handler: Callable[..., Awaitable[Response]]
    """Takes the request; a function of a class is bound by who makes the routes."""
    body: type[BaseModel] | None = None
    envelope: type[BaseModel] | None = None
    """Its fields are in the body, too."""
    many: bool = False
    """The body is a list of `body`."""
    query: tuple[tuple[str, JSONObject, str], ...] = ()
    """Name, schema and description of each parameter."""
    headers: tuple[tuple[str, str], ...] = ()
    """Name and description of each request header."""
    statuses: tuple[int, ...] = ()
    """Status codes in addition to those of every operation with a body or query."""
    content_type: str = JSON
    """The type of the response."""
    body_content_type: str = JSON
    """Another one than JSON: the body is bytes."""
    include_in_schema: bool = True


def operation(
    method: str, path: str, body: type[BaseModel] | None = None, *, summary: str | None = None, **details: Any
) -> Callable[[Handler], Handler]:
    """The decorated method answers this request. The summary is the first line of its docstring."""

    def mark(handler: Handler) -> Handler:
        text = summary or (handler.__doc__ or "").partition("\n")[0]
        marked: list[Operation] = handler.__dict__.setdefault("operations", [])
        marked.insert(0, Operation(method, path, text, handler, body, **details))
        return handler

    return mark


def operations_of(holder: type[Any]) -> tuple[Operation, ...]:
    """The operations of a class of handlers, in the order of its methods."""
    return tuple(each for member in vars(holder).values() for each in getattr(member, "operations", ()))


_STATUS_MEANINGS = {
    200: "success",
    302: "the address of the content",
    400: "the request cannot be carried out, or its body is not valid gzip",
    401: "a token is required",
    403: "the request's host or origin is not allowed",
    404: "unknown id",
    408: "not ready yet; ask again",
    413: "the body is too large",
    422: "invalid request; `detail` names the field",
    503: "the server is full, or the disk failed; try again later",
}


def document(title: str, operations: Sequence[Operation]) -> JSONObject:
    """The OpenAPI document."""
    documented = [operation for operation in operations if operation.include_in_schema]
    models = dict.fromkeys(
        model
        for operation in documented
        for model in (operation.body, operation.envelope)
        if model is not None
    )
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    paths: JSONObject = {}
    for operation in documented:
        path = _PATH_PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
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
    parameters: list[JSONObject] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string"},
            "description": "part of the path",
        }
        for name, _ in _PATH_PARAMETER.findall(operation.path)
    ]
    parameters += [
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
        "operationId": operation.method.lower() + re.sub(r"\W+", "_", operation.path).rstrip("_"),
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": _STATUS_MEANINGS[200], "content": {operation.content_type: {}}},
            **{
                str(code): {"description": _STATUS_MEANINGS[code]} for code in (*operation.statuses, 401, 403)
            },
        },
    }
    body = _body_schema(operation)
    if body is not None:
        content: JSONObject = {operation.body_content_type: {"schema": body}}
        description["requestBody"] = {"required": True, "content": content}
    if body is not None or operation.query:
        description["responses"] |= {
            str(code): {"description": _STATUS_MEANINGS[code]} for code in (400, 413, 422)
        }
    return description


def _body_schema(operation: Operation) -> JSONObject | None:
    if operation.body_content_type != JSON:
        return {"type": "string", "format": "binary"}
    models = [model for model in (operation.body, operation.envelope) if model is not None]
    references: list[JSONObject] = [{"$ref": _REFERENCE.format(model=model.__name__)} for model in models]
    if not references:
        return None
    schema = references[0] if len(references) == 1 else {"allOf": references}
    return {"type": "array", "items": schema} if operation.many else schema


def page(title: str, operations: Sequence[Operation]) -> str:
    """The same as HTML."""
    rows = "".join(
        f"<tr><td>{operation.method}</td><td><code>{html.escape(operation.path)}</code></td>"
        f"<td>{html.escape(operation.summary)}</td><td>{_body_link(operation)}</td></tr>"
        for operation in operations
        if operation.include_in_schema
    )
    schemas = "".join(
        f"<h2 id='{name}'>{name}</h2><pre>{html.escape(json.dumps(schema, indent=2))}</pre>"
        for name, schema in document(title, operations)["components"]["schemas"].items()
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
        "<style>body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "td,th{text-align:left;padding:.2rem .8rem .2rem 0;vertical-align:top}</style>"
        f"<h1>{html.escape(title)}</h1><p>As an OpenAPI document: <a href=/openapi.json>/openapi.json</a></p>"
        f"<table><tr><th>Method<th>Path<th>Summary<th>Body</tr>{rows}</table>{schemas}</html>"
    )


def _body_link(operation: Operation) -> str:
    if operation.body is None:
        return ""
    name = operation.body.__name__
    return f"<a href='#{name}'>{'list of ' if operation.many else ''}{name}</a>"
