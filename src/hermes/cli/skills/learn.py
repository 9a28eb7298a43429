"""`hermes skills learn`: the draft of a skill from a trajectory that succeeded."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hermes.cli.options import folder_option, json_option


@click.command()
@click.argument("reference", metavar="RUN|TRAJECTORY")
@click.option("--name", help="Name of the skill; default: from the task's words.")
@folder_option("Folder for the draft.")
@json_option
def learn(reference: str, name: str | None, out: Path | None, as_json: bool) -> None:
    """Draft a skill from work that went well, for you to edit.

    Of a run the best trajectory is taken. The draft goes to DIR/NAME/SKILL.md (default: the current
    folder); it is not installed. Edit it, then: hermes skills install DIR/NAME
    """
    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.disk.files import atomic_write
    from hermes.errors import UsageError
    from hermes.skills.install import check_content
    from hermes.skills.learn import choose_trajectory, draft_skill
    from hermes.skills.skill import SKILL_FILE
    from hermes.store import Reader

    with Reader(db_path(load().home)) as reader:
        draft = draft_skill(choose_trajectory(reader, reference), name)
    check_content(draft.name, draft.text)
    file = (out or Path()) / draft.name / SKILL_FILE
    if file.exists():
        raise UsageError(f"{file} exists already.", "Choose another --name or --output.")
    atomic_write(file, draft.text)
    if as_json:
        values = {"name": draft.name, "trajectory": draft.trajectory_id, "file": str(file)}
        click.echo(json.dumps(values, ensure_ascii=False))
        return
    click.echo(f"drafted {file} from trajectory {draft.trajectory_id}")
    click.echo(f"Edit it, then: hermes skills install {file.parent}")
