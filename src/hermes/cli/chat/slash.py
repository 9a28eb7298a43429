"""The slash commands of the chat: a table of small functions over a conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import click

from hermes.agent.chat import Conversation
from hermes.agent.toolset_choice import choose_toolsets
from hermes.cli.chat.options import ChatOptions, print_progress
from hermes.cli.render import local_time, one_line
from hermes.config.providers import profiles
from hermes.core import Role, Step, Trajectory
from hermes.core.names import did_you_mean, nearest
from hermes.errors import UsageError
from hermes.safety.output.columns import terminal_width, wrapped
from hermes.safety.text import printable

_RESUMABLE = 10
_HISTORY_CHARS = 300


class ExitChat(Exception):
    """Raised by /quit."""


@dataclass(frozen=True)
class ChatSession:
    """The state that a command changes: the conversation, and the options that the chat was started with."""

    chat: Conversation
    options: ChatOptions


@dataclass(frozen=True)
class SlashCommand:
    help: str
    run: Callable[[ChatSession, str], Awaitable[AsyncIterator[Step] | None]]


async def run_command(session: ChatSession, line: str) -> AsyncIterator[Step] | None:
    """Runs one command; returns the steps of a turn where the command starts one."""
    name, _, argument = line[1:].partition(" ")
    if name not in COMMANDS:
        close = [f"/{command}" for command in nearest(name, COMMANDS)]
        raise UsageError(f"no command /{name}", did_you_mean(close, "see /help"))
    return await COMMANDS[name].run(session, argument.strip())


async def _agreed(prompt: str) -> bool:
    from hermes.cli import question

    return (await question.ask(prompt)).strip().lower() in ("y", "yes")


async def _help(session: ChatSession, argument: str) -> None:
    for name, command in COMMANDS.items():
        click.echo(wrapped(f"  /{name:<8}  {command.help}"))
    click.echo("  @path in a question puts that file into it")
    click.echo("  Alt-Enter starts a new line; Ctrl-C stops the turn; Ctrl-D leaves")


async def _model(session: ChatSession, argument: str) -> None:
    from hermes.models.open import open_model, served_models
    from hermes.rl.weights.open import RUN, open_named, with_texts
    from hermes.training.policy_registry import names_policy

    chat, base_url = session.chat, session.options.base_url
    if not argument:
        click.echo(chat.model.name)
        if base_url is not None:
            names = await served_models(chat.config, base_url)
            click.echo(f"  {base_url} serves: {printable(', '.join(names)) or 'nothing'}")
        return
    has_provider = argument.partition("/")[0] in profiles(chat.config.settings, chat.config.environ)
    has_provider = (has_provider and "/" in argument) or names_policy(argument) or argument.startswith(RUN)
    if base_url is None or has_provider:
        new = open_named(chat.config, argument, progress=print_progress)
        chat.config = with_texts(chat.config, argument)
    else:
        names = await served_models(chat.config, base_url)
        if argument not in names:
            hint = did_you_mean(nearest(argument, names), f"it serves: {', '.join(names) or 'nothing'}")
            raise UsageError(f"{base_url} serves no model '{argument}'", hint)
        new = open_model(chat.config, argument, base_url)
    old = chat.model
    await chat.use(model=new)
    await old.close()
    click.echo(f"now {new.name}")


async def _tools(session: ChatSession, argument: str) -> None:
    chat = session.chat
    if argument:
        await chat.use(toolsets=choose_toolsets(chat.config, chat.model.name, argument))
    for tool in chat.loop.tools:
        summary = printable(tool.description.splitlines()[0])
        click.echo(wrapped(f"  {tool.name:<18}  {tool.toolset:<16}  {summary}", min(terminal_width(), 120)))
    failures = cast(dict[str, str], chat.loop.bench.resources.get("mcp_failures", {}))
    for server, reason in failures.items():
        click.echo(f"  not connected: {printable(server)}: {printable(reason)}")
    if not chat.loop.tools:
        click.echo("no tools; /tools terminal,file offers some")


async def _skills(session: ChatSession, argument: str) -> None:
    chat = session.chat
    from hermes.skills import list_skills

    if argument:
        click.echo(printable(list_skills(chat.config.home).find(argument).body))
        return
    for skill in list_skills(chat.config.home).skills:
        click.echo(f"  {skill.name:<26} {printable(skill.description)[:90]}")


async def _memory(session: ChatSession, argument: str) -> None:
    chat = session.chat
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


async def _save(session: ChatSession, argument: str) -> None:
    chat = session.chat
    from hermes.config.paths import db_path
    from hermes.data.export.run import export_conversation
    from hermes.store import Reader

    if not argument:
        raise UsageError("/save needs a file name", "/save conversation.jsonl")
    if not chat.loop.recorder.begun:
        raise UsageError("there is nothing to save yet", "ask something first")
    target = Path(argument).expanduser()
    if target.exists() and not await _agreed(f"{target} exists. Overwrite it? [y/N]: "):
        click.echo("not saved")
        return
    with Reader(db_path(chat.config.home)) as reader:
        export_conversation(reader, chat.trajectory_id, target)
    click.echo(f"saved {chat.trajectory_id} to {target}")


async def _rate(session: ChatSession, argument: str) -> None:
    chat = session.chat
    verdict, _, comment = argument.partition(" ")
    if verdict not in ("good", "bad", "1", "2", "3", "4", "5"):
        raise UsageError(f"'{verdict}' is not a rating", "/rate 1 to /rate 5, /good or /bad; then a comment")
    rating = await chat.rate(verdict, comment.strip() or None)
    note = f" ({printable(rating.comment)})" if rating.comment else ""
    click.echo(f"rated {rating.trajectory_id} step {rating.step_index}: {verdict}{note}")


async def _good(session: ChatSession, argument: str) -> None:
    await _rate(session, f"good {argument}")


async def _bad(session: ChatSession, argument: str) -> None:
    await _rate(session, f"bad {argument}")


async def _better(session: ChatSession, argument: str) -> None:
    chat = session.chat
    if argument not in ("", "retry", "first"):
        raise UsageError(f"'/better {argument}' is not understood", "/better, or /better first")
    rating = await chat.compare_retry(better=argument != "first")
    winner = "the retry" if rating.value > 0 else "the first answer"
    click.echo(f"rated: {winner} is better ({rating.trajectory_id} against {rating.other_id})")


async def _retry(session: ChatSession, argument: str) -> AsyncIterator[Step]:
    chat = session.chat
    return chat.retry()


async def _undo(session: ChatSession, argument: str) -> None:
    question = await session.chat.undo()
    click.echo(f"taken back: {one_line(question, 60)}")


async def _resume(session: ChatSession, argument: str) -> None:
    from hermes.config.paths import db_path
    from hermes.store import Filter, Reader

    with Reader(db_path(session.chat.config.home)) as reader:
        if argument:
            trajectory = reader.get(reader.resolve(argument))
        else:
            rows = reader.summaries(Filter(source="chat"), limit=_RESUMABLE)
            for row in rows:
                click.echo(f"  {row.id}  {local_time(row.created_at_ms)}  {one_line(row.task, 60)}")
            click.echo("/resume ID continues one of them" if rows else "no conversation is recorded yet")
            return
    await session.chat.resume(trajectory)
    show_history(trajectory)


def show_history(trajectory: Trajectory) -> None:
    """Prints the end of a conversation that is continued."""
    messages = [message for message in trajectory.messages if message.role in (Role.USER, Role.ASSISTANT)]
    click.echo(f"continuing {trajectory.header.id} ({len(messages)} messages)")
    for message in messages[-2:]:
        mark = "> " if message.role is Role.USER else "  "
        click.echo(click.style(mark + one_line(message.content, _HISTORY_CHARS), dim=True))


async def _new(session: ChatSession, argument: str) -> None:
    chat = session.chat
    await chat.restart()
    click.echo("new conversation")


async def _quit(session: ChatSession, argument: str) -> None:
    raise ExitChat


COMMANDS: dict[str, SlashCommand] = {
    "help": SlashCommand("this list", _help),
    "model": SlashCommand("show the model, or switch: /model NAME, as 'hermes models' lists them", _model),
    "tools": SlashCommand("show the tools, or offer others: /tools terminal,file or /tools none", _tools),
    "skills": SlashCommand("list the skills, or read one: /skills NAME", _skills),
    "memory": SlashCommand("list what is remembered, or remove a fact: /memory remove ID", _memory),
    "save": SlashCommand("write this conversation as ShareGPT: /save FILE", _save),
    "good": SlashCommand("the last answer was good", _good),
    "bad": SlashCommand("the last answer was bad", _bad),
    "rate": SlashCommand("rate the last answer: /rate 1 … /rate 5, then a comment if you like", _rate),
    "better": SlashCommand("after /retry: the new answer is better; /better first: the one before", _better),
    "retry": SlashCommand("answer the last message again, recorded beside the first answer", _retry),
    "undo": SlashCommand("take the last question and its answer back; the record keeps them", _undo),
    "resume": SlashCommand("list the last conversations, or continue one: /resume ID", _resume),
    "new": SlashCommand("start a new conversation", _new),
    "quit": SlashCommand("leave", _quit),
    "exit": SlashCommand("leave", _quit),
}
