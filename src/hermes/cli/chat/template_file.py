"""Templates of questions: YAML files in the home's `templates` folder.

A template has any of the keys `prompt`, `system`, `model`, `toolsets` and `schema`. In `prompt`,
`$input` stands for the question and `$name` for `--param name=value`. A flag overrides the template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from hermes.core import JSONObject
from hermes.core.names import did_you_mean, nearest
from hermes.disk.files import read_text
from hermes.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KEYS = ("prompt", "system", "model", "toolsets", "schema")
_INPUT = "input"


@dataclass(frozen=True)
class PromptTemplate:
    """One template; a key that the file lacks is None."""

    name: str
    prompt: str | None = None
    system: str | None = None
    model: str | None = None
    toolsets: str | None = None
    schema: JSONObject | None = None

    def question(self, text: str, params: Mapping[str, str]) -> str:
        """The prompt with `$input` and the parameters filled in; the text itself without a prompt."""
        if self.prompt is None:
            return text
        template = Template(self.prompt)
        names = set(template.get_identifiers())
        if missing := sorted(names - set(params) - {_INPUT}):
            raise UsageError(
                f"the template '{self.name}' needs a value for {', '.join(missing)}",
                " ".join(f"--param {name}=…" for name in missing),
            )
        if unknown := sorted(set(params) - names):
            raise UsageError(
                f"the template '{self.name}' has no ${unknown[0]}",
                f"its parameters: {', '.join(sorted(names - {_INPUT})) or 'none'}",
            )
        filled = template.safe_substitute({**params, _INPUT: text})
        return filled if _INPUT in names or not text else f"{filled}\n\n{text}"


def templates_dir(home: Path) -> Path:
    return home / "templates"


def template_names(home: Path) -> list[str]:
    return sorted(path.stem for path in templates_dir(home).glob("*.yaml"))


def template_path(home: Path, name: str) -> Path:
    """Where a template of this name lies; UsageError for a name that cannot be one."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"'{name}' cannot name a template", "use letters, digits, '-', '_' and '.'")
    return templates_dir(home) / f"{name}.yaml"


def load_template(home: Path, name: str) -> PromptTemplate:
    """The template of this name; UsageError says what is wrong with it."""
    from hermes.config import yaml_file

    path = template_path(home, name)
    text = read_text(path)
    if text is None:
        names = template_names(home)
        hint = did_you_mean(nearest(name, names), f"there are: {', '.join(names) or 'none'}")
        raise UsageError(f"there is no template '{name}'", f"{hint}; a new one is the file {path}")
    data = yaml_file.parse(text, str(path)).data
    for key, value in data.items():
        if key not in _KEYS:
            raise UsageError(f"{path}: unknown key '{key}'", f"the keys are {', '.join(_KEYS)}")
        if not isinstance(value, dict if key == "schema" else str):
            raise UsageError(
                f"{path}: '{key}' is no {'object' if key == 'schema' else 'text'}",
                "docs/command-line.md has an example",
            )
    template = PromptTemplate(name, **data)
    if template.prompt is not None and not Template(template.prompt).is_valid():
        raise UsageError(f"{path}: 'prompt' has a $ without a name", "write $$ for a dollar sign")
    return template


def parse_params(assignments: tuple[str, ...]) -> dict[str, str]:
    """The values of --param; UsageError for one without '='."""
    params = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise UsageError(f"--param {assignment} has no value", "write --param NAME=VALUE")
        params[name] = value
    return params
