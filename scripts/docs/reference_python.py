"""The page of the Python API: the names that environments, reward functions and scripts import.

A module is listed in MODULES on purpose: what is not there may change without notice. Of a class the page has
its fields, which are documented beneath them in the source, and its methods; private names are left out.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

MODULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "hermes.core": ("The nouns of the record: plain, immutable values.", ()),
    "hermes.store": ("Read and append trajectories.", ()),
    "hermes.ratings": ("Record ratings and serve queues of items to rate.", ()),
    "hermes.batch.reward": ("What a reward function gets.", ("RewardContext", "GraderError")),
    "hermes.envs.base": ("The base class of environments, with Atropos's hooks.", ("BaseEnv",)),
    "hermes.envs.config": ("The settings of every environment.", ("BaseEnvConfig",)),
    "hermes.envs.agent.env": (
        "The base class of environments whose rollouts are runs of the agent.",
        ("HermesAgentBaseEnv",),
    ),
    "hermes.envs.agent.config": ("Their settings.", ("HermesAgentEnvConfig",)),
    "hermes.envs.agent.result": ("What a finished rollout is.", ("AgentResult",)),
    "hermes.envs.agent.tool_context": ("The rollout's sandbox, for a reward function.", ("ToolContext",)),
    "hermes.envs.rewards.result": ("A reward with named parts.", ("RewardResult", "passed", "failed")),
    "hermes.envs.servers.config": ("The address of a model server.", ("APIServerConfig",)),
    "hermes.models.parsers": ("Tool calls in plain text.", ()),
    "hermes.sandbox": ("Where commands run.", ()),
    "hermes.errors": (
        "The errors that Hermes raises.",
        ("HermesError", "UsageError", "ConfigError", "StoreError"),
    ),
}
"""What each module is for, and its public names; none: those of its `__all__`."""


def python_api() -> Iterator[str]:
    yield "# Python API\n"
    yield "The names that environments, reward functions and scripts import. Other modules are internal and"
    yield "change without notice.\n"
    yield "```python"
    yield "from hermes.config.paths import db_path, home"
    yield "from hermes.store import Reader"
    yield ""
    yield "with Reader(db_path(home())) as store:"
    yield "    for summary in store.summaries(limit=5):"
    yield "        print(summary.id, summary.model, store.get(summary.id).answer)"
    yield "```\n"
    for name, (purpose, names) in MODULES.items():
        module = importlib.import_module(name)
        yield f"## {name}\n"
        yield purpose + "\n"
        for public in names or module.__all__:
            yield from _entry(module, public)


def _entry(module: ModuleType, name: str) -> Iterator[str]:
    value = getattr(module, name)
    if value is Any or str(value).startswith("dict["):  # a name for a type
        yield f"### {name}\n"
        yield "Any JSON value.\n" if value is Any else "A JSON object.\n"
    elif inspect.isclass(value):
        yield f"### {name}\n"
        if meaning := _first_paragraph(value):
            yield meaning + "\n"
        if issubclass(value, enum.Enum):
            yield "Values: " + ", ".join(f"`{member.value}`" for member in value) + ".\n"
            return
        yield from _fields(value)
        yield from _methods(value)
    elif inspect.isroutine(value):
        yield f"### {name}\n"
        yield f"```python\n{_signature(name, value)}\n```\n"
        yield _first_paragraph(value) + "\n"


def _fields(cls: type) -> Iterator[str]:
    rows = list(_pydantic_fields(cls)) or list(_dataclass_fields(cls))
    if rows:
        yield from (f"- `{text}`" + (f": {meaning}" if meaning else "") for text, meaning in rows)
        yield ""


def _pydantic_fields(cls: Any) -> Iterator[tuple[str, str]]:
    own = inspect.get_annotations(cls)
    for name, field in getattr(cls, "model_fields", {}).items():
        if name in own:
            yield f"{name}: {_plain_annotation(own[name])}", _one_line(field.description or "")


def _dataclass_fields(cls: Any) -> Iterator[tuple[str, str]]:
    if not dataclasses.is_dataclass(cls):
        return
    meanings = _field_docs(cls)
    for field in dataclasses.fields(cls):
        if not field.name.startswith("_"):
            yield f"{field.name}: {_plain_annotation(field.type)}", meanings.get(field.name, "")


def _field_docs(cls: type) -> dict[str, str]:
    """The strings beneath the fields of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    meanings: dict[str, str] = {}
    for field, beneath in zip(body.body, body.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(beneath, ast.Expr) and isinstance(beneath.value, ast.Constant):
            meanings[field.target.id] = _one_line(str(beneath.value.value))
    return meanings


def _methods(cls: type) -> Iterator[str]:
    lines = list(_method_lines(cls))
    if lines:
        yield from lines
        yield ""


def _method_lines(cls: type) -> Iterator[str]:
    for name, member in vars(cls).items():
        if name.startswith("_") or name == "model_config":
            continue
        if isinstance(member, property):
            meaning = _first_paragraph(member)
            yield f"- `{name}`" + (f": {meaning}" if meaning else "")
            continue
        routine = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(routine):
            meaning = _first_paragraph(routine)
            yield f"- `{_signature(name, routine)}`" + (f": {meaning}" if meaning else "")


def _signature(name: str, routine: Any) -> str:
    signature = inspect.signature(routine)
    parameters = [parameter for key, parameter in signature.parameters.items() if key not in ("self", "cls")]
    text = str(signature.replace(parameters=parameters))
    kind = "async " if inspect.iscoroutinefunction(routine) else ""
    return f"{kind}{name}{_plain_annotation(text)}"


def _plain_annotation(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"<([\w.]+): [^>]*>", r"\1", text)  # an enum's member as a default
    text = re.sub(r"<function \S+ at 0x[0-9a-f]+>", "…", text)
    return re.sub(r"'([A-Za-z_][\w.\[\], |]*)'(?=[,)\]]| =|$)", r"\1", text)


def _first_paragraph(value: Any) -> str:
    text = value.__doc__ or ""
    if inspect.isclass(value) and text.startswith(f"{value.__name__}("):  # what dataclass writes by itself
        return ""
    return _one_line(inspect.cleandoc(text).split("\n\n")[0])


def _one_line(text: str) -> str:
    return " ".join(text.split())
