"""Types the values of formats that write every value as plain text, by the tool's schema."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.core import JSON, JSONObject
from hermes.models.parsers.json_scan import decode

_JSON_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


def parameter_schemas(tools: Sequence[JSONObject], name: str) -> JSONObject:
    """The parameter schemas of the tool called `name`; empty if it is not among `tools`."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            root = function.get("parameters") or {}
            properties = root.get("properties")
            if isinstance(properties, dict):
                return {key: _resolve(schema, root) for key, schema in properties.items()}
    return {}


def _resolve(schema: JSON, root: JSONObject) -> JSON:
    """The schema itself, or what its '#/…' reference points to."""
    if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
        return schema
    target: JSON = root
    for part in schema["$ref"].removeprefix("#/").split("/"):
        target = target.get(part) if isinstance(target, dict) else None
    return target


def typed_value(text: str, schema: JSON) -> JSON:
    """The value that `text` stands for under its parameter's schema.

    For a string parameter it is the text itself. For any other it is the text parsed as JSON, if that has a
    type the schema allows. A text that fits no type stays text, and the schema check rejects it. Without a
    schema, text that is JSON, but not a JSON string, is that value.
    """
    allowed = _types(schema)
    if allowed == {"string"}:
        return text
    if "boolean" in allowed and text.strip() in ("True", "False"):
        return text.strip() == "True"  # how templates written in Python print a boolean
    decoded = decode(text)
    if decoded is None or (isinstance(decoded.value, str) and (not allowed or "string" in allowed)):
        return text
    if allowed and "string" in allowed and not _type_names(decoded.value) & allowed:
        return text
    return decoded.value


def _types(schema: JSON) -> set[str]:
    """The JSON types that a schema allows; empty if it declares none."""
    if not isinstance(schema, dict):
        return set()
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {kind for kind in declared if isinstance(kind, str)}
    if isinstance(schema.get("enum"), list):
        return set().union(*(_type_names(value) for value in schema["enum"]))
    branches = schema.get("anyOf") or schema.get("oneOf") or []
    branch_types = [_types(branch) for branch in branches] if isinstance(branches, list) else []
    return set().union(*branch_types) if all(branch_types) else set()


def _type_names(value: JSON) -> set[str]:
    """The schema types that describe a value: an integer is also a number."""
    if value is None:
        return {"null"}
    name = next(name for kind, name in _JSON_TYPES if isinstance(value, kind))
    return {name, "number"} if name == "integer" else {name}
