"""Small functions and constants that environment files import from atroposlib."""

from __future__ import annotations

import logging
import sys
from typing import Any

from pydantic import BaseModel, create_model

from hermes.envs.modes.eval_log import table

ENV_NAMESPACE = "env"
OPENAI_NAMESPACE = "openai"
SERVER_MANAGER_NAMESPACE = "server"
NAMESPACE_SEP = "."


async def parse_http_response(resp: Any, logger: logging.Logger | None = None) -> Any:
    """The JSON of an aiohttp response; an error status is logged with the body, and raised."""
    if resp.status >= 400:
        (logger or logging.getLogger(__name__)).error(
            "%s returned %s: %s", resp.url, resp.status, await resp.text()
        )
    resp.raise_for_status()
    return await resp.json()


def display_metrics_table(
    task_name: str, metrics: dict[str, Any], start_time: float, end_time: float
) -> None:
    sys.stdout.write(table(task_name, metrics, {}, end_time - start_time))


def get_double_dash_flags() -> dict[str, Any]:
    """The flags of this process's command line; one without a value is True, `None` is None."""
    words, flags = sys.argv[1:], {}
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            continue
        name, separator, value = word[2:].partition("=")
        has_value = bool(separator)
        if not has_value and words and not words[0].startswith("--"):
            has_value, value = True, words.pop(0)
        flags[name] = (None if value == "None" else value) if has_value else True
    return flags


def merge_dicts(*dicts: dict[str, Any]) -> dict[str, Any]:
    """One dictionary of all; later ones override earlier ones."""
    return {key: value for mapping in dicts for key, value in mapping.items()}


def extract_namespace(model: Any, prefix: str) -> dict[str, Any]:
    """The entries whose key begins with the prefix, without it."""
    data = model if isinstance(model, dict) else model.model_dump(by_alias=True)
    return {key[len(prefix) :]: value for key, value in data.items() if key.startswith(prefix)}


def get_prefixed_pydantic_model(base_model: type[BaseModel], prefix: str) -> type[BaseModel]:
    """The same model with a prefix before the name of each field."""
    fields: dict[str, Any] = {
        prefix + name: (field.annotation, field) for name, field in base_model.model_fields.items()
    }
    return create_model(f"{base_model.__name__}Prefixed", **fields)


def parse_args_and_command() -> tuple[str | None, dict[str, Any]]:
    """The command (the first word, unless it is a flag) and the flags."""
    commands = [word for word in sys.argv[1:2] if not word.startswith("-")]
    return (commands[0] if commands else None), get_double_dash_flags()
