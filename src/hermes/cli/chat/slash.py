"""The slash commands of the chat: a table of small functions over a conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import cast

import click

from hermes.agent.chat import Conversation
from hermes.agent.toolset_choice import choose_toolsets
from hermes.cli.chat.options import print_progress
from hermes.core import Step
from hermes.errors import UsageError
from hermes.safety.text import printable


class ExitChat(Exception):
    """Raised by /quit."""


@dataclass(frozen=True)
class SlashCommand:
    help: str
    run: Callable[[Conversation, str], Awaitable[AsyncIterator[Step] | None]]


async def run_command(chat: Conversation, line: str) -> AsyncIterator[Step] | None:
    """Runs one command; returns the steps of a turn where the command starts one."""
    name, _, argument = line[1:].partition(" ")
    if name not in COMMANDS:
        close = get_close_matches(name, COMMANDS, n=1)
        raise UsageError(f"no command /{name}", f"did you mean /{close[0]}?" if close else "see /help")
    return await COMMANDS[name].run(chat, argument.strip())


async def _help(chat: Conversation, argument: str) -> None:
    for name, command in COMMANDS.items():
        click.echo(f"  /{name:<8} {command.help}")
    click.echo("  Alt-Enter starts a new line; Ctrl-C stops the turn; Ctrl-D leaves")


async def _model(chat: Conversation, argument: str) -> None:
    if not argument:
        click.echo(chat.model.name)
        return
    from hermes.models.open import open_model

    old, new = chat.model, open_model(chat.config, argument, progress=print_progress)
    await chat.use(model=new)
    await old.close()
    click.echo(f"now {new.name}")


async def _tools(chat: Conversation, argument: str) -> None:
    if argument:
        await chat.use(toolsets=choose_toolsets(chat.config, chat.model.name, argument))
    for tool in chat.loop.tools:
        click.echo(f"  {tool.name:<18} {tool.toolset:<16} {printable(tool.description.splitlines()[0])[:80]}")
    failures = cast(dict[str, str], chat.loop.bench.resources.get("mcp_failures", {}))
    for server, reason in failures.items():
        click.echo(f"  not connected: {printable(server)}: {printable(reason)}")
    if not chat.loop.tools:
        click.echo("no tools; /tools terminal,file offers some")


async def _skills(chat: Conversation, argument: str) -> None:
    from hermes.skills import list_skills

    if argument:
        click.echo(printable(list_skills(chat.config.home).find(argument).body))
        return
    for skill in list_skills(chat.config.home).skills:
        click.echo(f"  {skill.name:<26} {printable(skill.description)[:90]}")


async def _memory(chat: Conversation, argument: str) -> None:
    from hermes.cli.setup.memory import facts_table
    from hermes.config.paths import db_path
    from hermes.store import Reader

    action, _, reference = argument.partition(" ")
    if action not in ("", "remove") or (action and not reference.strip()):
        raise UsageError(f"'/memory {argument}' is not understood", "/memory, or /memory remove ID")
    with Reader(db_path(chat.config.home)) as reader:
        if not action:
            facts = reader.facts()
            click.echo(facts_table(facts) if facts else "nothing is remembered yet")
            return
        fact = reader.resolve_fact(reference.strip())
    await chat.forget(fact.id)
    click.echo(f"removed {fact.id}: {printable(fact.text)}")


async def _save(chat: Conversation, argument: str) -> None:
    from hermes.config.paths import db_path
    from hermes.data.export.run import export_conversation
    from hermes.store import Reader

    if not argument:
        raise UsageError("/save needs a file name", "/save conversation.jsonl")
    if not chat.loop.recorder.begun:
        raise UsageError("there is nothing to save yet", "ask something first")
    target = Path(argument).expanduser()
    with Reader(db_path(chat.config.home)) as reader:
        export_conversation(reader, chat.trajectory_id, target)
    click.echo(f"saved {chat.trajectory_id} to {target}")


async def _rate(chat: Conversation, argument: str) -> None:
    if argument not in ("good", "bad", "1", "2", "3", "4", "5"):
        raise UsageError(f"'{argument}' is not a rating", "/rate 1 to /rate 5, /good or /bad")
    rating = await chat.rate(argument)
    click.echo(f"rated {rating.trajectory_id} step {rating.step_index}: {argument}")


async def _good(chat: Conversation, argument: str) -> None:
    await _rate(chat, "good")


async def _bad(chat: Conversation, argument: str) -> None:
    await _rate(chat, "bad")


async def _better(chat: Conversation, argument: str) -> None:
    if argument not in ("", "retry", "first"):
        raise UsageError(f"'/better {argument}' is not understood", "/better, or /better first")
    rating = await chat.compare_retry(better=argument != "first")
    winner = "the retry" if rating.value > 0 else "the first answer"
    click.echo(f"rated: {winner} is better ({rating.trajectory_id} against {rating.other_id})")


async def _retry(chat: Conversation, argument: str) -> AsyncIterator[Step]:
    return chat.retry()


async def _new(chat: Conversation, argument: str) -> None:
    await chat.restart()
    click.echo("new conversation")


async def _quit(chat: Conversation, argument: str) -> None:
    raise ExitChat


COMMANDS: dict[str, SlashCommand] = {
    "help": SlashCommand("this list", _help),
    "model": SlashCommand("show the model, or switch to another: /model openrouter/…", _model),
    "tools": SlashCommand("show the tools, or offer others: /tools terminal,file or /tools none", _tools),
    "skills": SlashCommand("list the skills, or read one: /skills NAME", _skills),
    "memory": SlashCommand("list what is remembered, or remove a fact: /memory remove ID", _memory),
    "save": SlashCommand("write this conversation as ShareGPT: /save FILE", _save),
    "good": SlashCommand("the last answer was good", _good),
    "bad": SlashCommand("the last answer was bad", _bad),
    "rate": SlashCommand("rate the last answer: /rate 1 … /rate 5", _rate),
    "better": SlashCommand("after /retry: the new answer is better; /better first: the one before", _better),
    "retry": SlashCommand("answer the last message again, recorded beside the first answer", _retry),
    "new": SlashCommand("start a new conversation", _new),
    "quit": SlashCommand("leave", _quit),
}
