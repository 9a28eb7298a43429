"""`hermes templates`: the stored templates of questions."""

from __future__ import annotations

import json

import click

from hermes.cli.options import CommandGroup, json_option

_NEW = "prompt: |\n  $input\nsystem: You are a careful assistant.\n"


@click.group(cls=CommandGroup)
def templates() -> None:
    """Templates of questions: YAML files with any of prompt, system, model, toolsets and schema.

    In the prompt $input is the question, and $name the value of --param name=value.

    \b
    hermes templates edit summary
    cat report.txt | hermes -t summary --param length=short
    """


@templates.command()
@click.argument("name", required=False)
@json_option
def show(name: str | None, as_json: bool) -> None:
    """List the templates, or show one."""
    from dataclasses import asdict

    from hermes.cli.chat.template_file import load_template, template_names, template_path, templates_dir
    from hermes.config.paths import home
    from hermes.disk.files import read_text
    from hermes.safety.text import printable

    if name is None:
        names = template_names(home())
        empty = f"no templates in {templates_dir(home())}; see 'hermes templates edit'"
        click.echo(json.dumps(names) if as_json else "\n".join(names) or empty)
        return
    template = load_template(home(), name)
    if as_json:
        click.echo(json.dumps(asdict(template), ensure_ascii=False))
    else:
        click.echo(printable(read_text(template_path(home(), name)) or "").rstrip())


templates.former_names["list"] = "show"


@templates.command()
@click.argument("name")
def edit(name: str) -> None:
    """Open a template in $EDITOR; a new one begins with an example."""
    import os

    from hermes.cli.chat.template_file import load_template, template_path
    from hermes.config.edit import edit_file
    from hermes.config.paths import home
    from hermes.disk.files import atomic_write, make_private_dirs

    path = template_path(home(), name)
    make_private_dirs(path.parent)
    if not path.exists():
        atomic_write(path, _NEW)
    edit_file(path, os.environ)
    load_template(home(), name)
    click.echo(f"use it: hermes -t {name} 'your question'")
