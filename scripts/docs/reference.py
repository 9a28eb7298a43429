"""Writes docs/reference from the code: commands, settings, variables, tools, metrics, files, API and Python.

`python scripts/docs/reference.py` writes the pages; with `--check` it writes nothing and exits 1 if a page
differs from the code. The pages contain no figure of this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any, get_args

import click

sys.path.insert(0, str(Path(__file__).parent))  # loaded by its path, it finds its neighbours too
import reference_data
import reference_python

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
_HEADER = "<!-- Written by scripts/docs/reference.py; edit the code instead. -->\n\n"
_WIDTH = 78
"""Of usage lines, whatever terminal this runs in."""


def pages() -> dict[str, str]:
    """Every page's text by file name."""
    writers: dict[str, Callable[[], Iterator[str]]] = {
        "command-line.md": command_line,
        "settings.md": settings,
        "tools.md": tools,
        "trajectory-api.md": trajectory_api,
        "engine-api.md": engine_api,
        "environment-variables.md": reference_data.variables,
        "metrics.md": reference_data.metrics,
        "files.md": reference_data.files,
        "python.md": reference_python.python_api,
    }
    return {name: _HEADER + "\n".join(lines()).rstrip() + "\n" for name, lines in writers.items()}


def command_line() -> Iterator[str]:
    from hermes.cli.main import cli

    yield "# Command line\n"
    yield "Every command with its options. `hermes COMMAND --help` prints the same text.\n"
    settings = {**cli.context_settings, "terminal_width": _WIDTH}
    context = click.Context(cli, info_name="hermes", **settings)
    yield from _command(cli, context, 2)


def _command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    if command.hidden:
        return
    yield f"{'#' * min(level, 4)} {context.command_path}\n"
    text = command.get_help_option(context) and (command.help or "")
    yield _paragraphs(text or "") + "\n"
    yield f"```text\n{command.get_usage(context)}\n```\n"
    rows = [row for parameter in command.get_params(context) if (row := parameter.get_help_record(context))]
    if rows:
        yield from (f"- `{name}`: {' '.join(meaning.split())}" for name, meaning in rows)
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from _command(child, click.Context(child, info_name=name, parent=context), level + 1)


def settings() -> Iterator[str]:
    from hermes.config.settings import Settings

    yield "# Settings\n"
    yield "Every key of `config.yaml`. Set one with `hermes config set KEY VALUE`; the page"
    yield "[configuration](../configuration.md) says which value wins.\n"
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for key, default, meaning in _setting_rows(Settings, ""):
        yield f"| `{key}` | {default} | {_cell(meaning)} |"


def _setting_rows(model: Any, prefix: str) -> Iterator[tuple[str, str, str]]:
    from pydantic import BaseModel
    from pydantic_core import PydanticUndefined

    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        entry = _entry_model(field.annotation)
        if isinstance(default, BaseModel):
            yield from _setting_rows(type(default), f"{prefix}{name}.")
        elif entry is not None:
            yield f"{prefix}{name}", "", field.description or ""
            yield from _setting_rows(entry, f"{prefix}{name}.NAME.")
        else:
            shown = "" if default is PydanticUndefined else f"`{_cell(_plain(default))}`"
            yield prefix + name, shown, field.description or ""


def _entry_model(annotation: Any) -> Any:
    """The section that a mapping's values are; None: the setting is no mapping of sections."""
    from pydantic import BaseModel

    arguments = get_args(annotation)
    is_mapping = len(arguments) == 2 and isinstance(arguments[1], type)
    return arguments[1] if is_mapping and issubclass(arguments[1], BaseModel) else None


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_plain, value)) + "]"
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


def tools() -> Iterator[str]:
    from hermes.tools import registry
    from hermes.tools.toolsets import TOOLSETS

    yield "# Tools\n"
    yield "The agent can call these tools. `hermes tools` says which are available on this machine.\n"
    for toolset in registry.toolset_names():
        yield f"## {toolset}\n"
        if toolset in TOOLSETS:  # a higher package registers its own, without a description
            yield TOOLSETS[toolset].description + "\n"
        for tool in registry.tools_in(toolset):
            yield f"### {tool.name}\n"
            yield _paragraphs(tool.description) + "\n"
            yield from _schema_table(tool.parameters)


def trajectory_api() -> Iterator[str]:
    from hermes.rollouts.http.app import OPERATIONS, TITLE
    from hermes.serving.openapi import document

    yield "# Trajectory API: requests\n"
    yield "The HTTP interface between environments and trainers, from its OpenAPI document, which the server"
    yield "has at `/openapi.json`. What the requests promise: [trajectory API](../trajectory-api.md).\n"
    yield from _operations(document(TITLE, OPERATIONS))


def engine_api() -> Iterator[str]:
    from hermes.engine.server.app import TITLE
    from hermes.engine.server.openai import routes as openai
    from hermes.engine.server.tinker import routes as tinker
    from hermes.serving.openapi import document

    yield "# Engine: requests\n"
    yield "The HTTP interfaces of `hermes engine serve`, from its OpenAPI document, which the server has at"
    yield "`/openapi.json`. What the requests promise: [OpenAI API](../openai-api.md) and"
    yield "[Tinker API](../tinker-api.md).\n"
    yield from _operations(document(TITLE, (*openai.OPERATIONS, *tinker.OPERATIONS)))


def _operations(description: Any) -> Iterator[str]:
    """The requests and the schemas of an OpenAPI document."""
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield f"## {method.upper()} {path}\n"
            yield operation["summary"] + "\n"
            for parameter in operation["parameters"]:
                yield f"- `{parameter['name']}` ({parameter['in']}): {parameter['description']}"
            if operation["parameters"]:
                yield ""
            if "requestBody" in operation:
                yield f"Body: {_body(operation['requestBody']['content'])}.\n"
            statuses = operation["responses"].items()
            yield "Status: " + "; ".join(f"{code} {text['description']}" for code, text in statuses) + ".\n"
    for name, schema in description["components"]["schemas"].items():
        yield f"## {name}\n"
        yield from _schema_table(schema)


def _body(content: Any) -> str:
    ((content_type, entry),) = content.items()
    if content_type != "application/json":
        return f"`{content_type}`"
    schema = entry["schema"]
    item = schema.get("items") or schema
    names = [part["$ref"].rpartition("/")[2] for part in item.get("allOf", [item])]
    links = " and ".join(f"[{name}](#{name.lower()})" for name in names)
    return f"{'a list of' if 'items' in schema else 'a'} {links}"


def _schema_table(schema: Any) -> Iterator[str]:
    properties = schema.get("properties") or {}
    if not properties:
        yield "No arguments.\n"
        return
    required = schema.get("required") or ()
    yield "| name | type | meaning |"
    yield "|---|---|---|"
    for name, field in properties.items():
        need = " (required)" if name in required else ""
        yield f"| `{name}`{need} | {_kind(field)} | {_cell(field.get('description', ''))} |"
    yield ""


def _kind(field: Any) -> str:
    if "enum" in field:
        return _cell(" or ".join(f"`{value}`" for value in field["enum"]))
    if "anyOf" in field:
        return " or ".join(_kind(choice) for choice in field["anyOf"])
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    kind = field.get("type", "any")
    if kind == "array" and "items" in field:
        return f"list of {_kind(field['items'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _paragraphs(text: str) -> str:
    """The text with each paragraph on one line; a paragraph after \\b keeps its lines."""
    blocks = []
    for block in _dedent(text).split("\n\n"):
        if block.startswith("\b"):
            blocks.append("```text\n" + block.removeprefix("\b").strip("\n") + "\n```")
        else:
            blocks.append(" ".join(block.split()))
    return "\n\n".join(blocks).strip()


def _dedent(text: str) -> str:
    import inspect

    return inspect.cleandoc(text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, "utf-8")


def outdated(folder: Path = FOLDER) -> dict[str, list[str]]:
    """The pages that differ from the code, by name, with the lines that differ."""
    differences = {}
    for name, text in pages().items():
        written = (folder / name).read_text("utf-8") if (folder / name).exists() else ""
        if written != text:
            lines = unified_diff(written.splitlines(), text.splitlines(), "written", "code", "", "", 0, "")
            differences[name] = list(lines)
    return differences


if __name__ == "__main__":
    if "--check" in sys.argv:
        differences = outdated()
        for name, lines in differences.items():
            sys.stderr.write("\n".join((f"{name} is out of date; run: make reference", *lines, "")))
        sys.exit(bool(differences))
    write()
