"""At the end of a chat that took many corrections: a draft of a skill, which the person decides about."""

from __future__ import annotations

import click

from hermes.cli import question
from hermes.config.load import Config
from hermes.config.paths import db_path
from hermes.errors import HermesError
from hermes.safety.text import printable
from hermes.skills.drafts import accept, corrections, propose, refuse
from hermes.store import Reader

_CHOICE = "[a]ccept, [e]dit or [r]efuse it; Enter leaves it for later: "


async def suggest_skill(config: Config, trajectory_id: str) -> None:
    """A failure is reported on standard error and does not fail the chat, which has ended well."""
    try:
        with Reader(db_path(config.home)) as reader:
            trajectory = reader.get(trajectory_id)
            draft = propose(config.home, reader, trajectory, config.settings.skills.corrections)
        if draft is None:
            return
        count = corrections(trajectory)
        question.show_action(f"This took {count} corrections. A skill from {trajectory_id}:", draft.text)
        reply = (await question.ask(_CHOICE)).strip().lower()
        if reply in ("r", "refuse"):
            refuse(config.home, draft.name)
            click.echo("refused")
        elif reply in ("a", "accept", "e", "edit"):
            edited = click.edit(draft.text, extension=".md") if reply.startswith("e") else draft.text
            if edited is None:
                click.echo("unchanged; the draft is on the web page Skills")
                return
            skill = accept(config.home, draft.name, edited)
            click.echo(f"saved {skill.name}; a trial decides about it: hermes skills trial {skill.name}")
    except HermesError as error:
        click.echo(f"no skill: {printable(error.message)}; {printable(error.hint)}", err=True)
