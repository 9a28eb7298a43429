"""The fields of a run's form: those of `hermes rl config`, read in a process of their own.

An environment is code. It is imported by a child process, never by the server, and only if it is one of the
listed environments: a path from a form is refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes.config.environment import without_stored
from hermes.core import JSONObject
from hermes.envs.cli.discover import Discovery, EnvironmentInfo
from hermes.errors import HermesError, UsageError
from hermes.rl.config.resolve import EnvSelection, list_environments, resolve

_PATIENCE_S = 60.0
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
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, name],
            env={**without_stored(os.environ), "HERMES_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HermesError(f"the environment {name} did not load within {_PATIENCE_S:.0f} seconds") from error
    try:
        report = json.loads(done.stdout.decode(errors="replace").strip().splitlines()[-1])
    except (ValueError, IndexError):
        problem = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        raise HermesError(f"the environment {name} cannot be loaded: {problem[0][:300]}") from None
    if "error" in report:
        raise UsageError(report["error"], report["hint"])
    fields = [_form_field(row) for row in report["fields"]]
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


def _print_fields(name: str) -> None:
    from hermes.config.load import load

    config = load()
    try:
        environment = find_listed(list_environments(config), name)
        resolved = resolve(config, EnvSelection(environment.name, str(environment.path.resolve())))
        rows = [field.to_json(resolved.values[key]) for key, field in resolved.fields.items()]
        report: JSONObject = {"fields": rows}
    except HermesError as error:
        report = {"error": error.message, "hint": error.hint}
    sys.stdout.write("\n" + json.dumps(report, default=str) + "\n")


if __name__ == "__main__":
    _print_fields(sys.argv[1])
