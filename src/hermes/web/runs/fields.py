"""The fields of a run's form: those of `hermes rl config`, read in a process of their own.

An environment is code. It is imported by a child process, never by the server, and only if it is one of the
listed environments: a path from a form is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes.config.paths import HOME_VARIABLE
from hermes.core import JSON, JSONObject
from hermes.envs.cli.discover import Discovery, EnvironmentInfo
from hermes.errors import UsageError
from hermes.rl.config.resolve import EnvSelection, list_environments, resolve
from hermes.sandbox.child_call import call_in_child

FIRST = (
    "env.total_steps",
    "env.group_size",
    "env.batch_size",
    "env.max_token_length",
    "tinker.base_model",
    "tinker.learning_rate",
    "tinker.lora_rank",
    "tinker.loss",
    "tinker.kl_coefficient",
    "tinker.seed",
    "tinker.start_from",
)
"""Fields that most people change; the form shows them first."""


@dataclass(frozen=True, slots=True)
class FormField:
    name: str
    type: str
    value: str
    """As it is written in the form."""
    description: str
    choices: tuple[str, ...]
    lock: str | None
    """Why it is locked; None: it is not."""
    allowed: str
    """Bounds, in words."""

    @property
    def first(self) -> bool:
        return self.name in FIRST


def find_listed(discovery: Discovery, name: str) -> EnvironmentInfo:
    for environment in discovery.environments:
        if environment.name == name:
            return environment
    raise UsageError(f"there is no environment '{name[:80]}'", "The page Environments lists them.")


def read_fields(home: Path, name: str) -> list[FormField]:
    """The fields of a listed environment with the values that a run would have."""
    from hermes.config.load import load

    config = load(environ={**os.environ, HOME_VARIABLE: str(home)})
    path = find_listed(list_environments(config), name).path
    result = call_in_child(f"{__name__}:report_fields", {"name": name}, path, home=home)
    if result.problem is not None:
        raise result.problem
    fields = [_form_field(row) for row in result.reports]
    order = {field: position for position, field in enumerate(FIRST)}
    return sorted(
        fields, key=lambda field: (order.get(field.name, len(order)), field.lock is not None, field.name)
    )


def _form_field(row: JSONObject) -> FormField:
    bounds = [
        f"{word} {_bound(row[key])}"
        for word, key in (("at least", "minimum"), ("at most", "maximum"))
        if key in row
    ]
    choices = tuple(str(choice) for choice in row.get("choices") or ())
    return FormField(
        row["name"],
        row["type"],
        written(row["current_value"]),
        row["description"],
        choices,
        row.get("reason"),
        f"{', '.join(bounds).capitalize()}." if bounds else "",
    )


def _bound(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:g}"


def written(value: Any) -> str:
    """As `hermes rl config FIELD VALUE` takes it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def report_fields(report: Callable[[JSON], None], name: str) -> None:
    """Reports each field, in a child process of the server."""
    from hermes.config.load import load

    config = load()
    environment = find_listed(list_environments(config), name)
    resolved = resolve(config, EnvSelection(environment.name, str(environment.path.resolve())))
    for key, field in resolved.fields.items():
        report(json.loads(json.dumps(field.to_json(resolved.values[key]), default=str)))
