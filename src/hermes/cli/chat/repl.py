"""The interactive chat: reads lines, runs turns and commands.

Ctrl-C stops the turn, not the program; Ctrl-D or /quit exits. A line that begins with a slash is a command,
and '@path' in a line puts that file into the question.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.agent.build import UserCallbacks
from hermes.agent.chat import Conversation
from hermes.cli.chat.inputs import expand_files
from hermes.cli.chat.options import (
    ChatOptions,
    load_config,
    make_plan,
    open_chat_model,
    open_chat_writer,
    resumed_conversation,
)
from hermes.cli.chat.screen import Screen, outcome_text, spent_text
from hermes.cli.chat.slash import COMMANDS, ChatSession, ExitChat, run_command, show_history
from hermes.config.load import Config
from hermes.core import Step, StopReason, Usage
from hermes.errors import HermesError
from hermes.safety.output.columns import wrapped
from hermes.safety.text import printable
from hermes.store import Filter

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

_PROMPT = "> "


async def run_repl(options: ChatOptions) -> None:
    config = load_config(options)
    resumed = resumed_conversation(config, options)
    model = await open_chat_model(config, options)
    screen = Screen()
    plan = make_plan(config, model.name, options)
    plan = replace(
        plan,
        workspace=plan.workspace or Path.cwd(),
        user=UserCallbacks(screen.approve, screen.answer, screen.notify),
        memory=True,
        on_delta=screen.delta,
    )
    tools = f"tools: {', '.join(plan.toolsets) or 'none'}"
    click.echo(wrapped(f"{printable(model.name)}  {tools}  (/help, Ctrl-D leaves)"))
    if options.no_log:
        click.echo("(nothing of this conversation is recorded)")
    with open_chat_writer(config, options) as writer:
        async with Conversation(config, writer, model, plan, resumed=resumed) as chat:
            if resumed is not None:
                show_history(resumed)
            try:
                await _converse(ChatSession(chat, options), screen, _prompt_session(config))
            finally:
                screen.idle()
                await chat.model.close()
        last = chat.loop.recorder
    if last.begun and not options.no_log:
        click.echo(click.style(f"recorded as {last.header.id}; 'hermes -c' continues it", dim=True))
        if config.settings.rating.raters:
            from hermes.cli.rating.auto import rate_new

            await rate_new(config, Filter(session_id=last.header.session_id))
        if config.settings.skills.auto == "suggest":
            from hermes.cli.skills.suggest import suggest_skill

            await suggest_skill(config, last.header.id)


async def _converse(session: ChatSession, screen: Screen, prompt: PromptSession[str]) -> None:
    chat = session.chat
    while True:
        try:
            line = (await prompt.prompt_async(_PROMPT)).strip()
        except KeyboardInterrupt:
            continue  # clears the line
        except EOFError:
            return
        if not line:
            continue
        try:
            command = line.startswith("/")
            steps = await run_command(session, line) if command else chat.send(expand_files(line))
            if steps is not None:
                await _print_turn(steps, chat, screen)
        except ExitChat:
            return
        except HermesError as error:
            click.echo(f"error: {printable(error.message)}", err=True)
            if error.hint:
                click.echo(f"  fix: {printable(error.hint)}", err=True)


async def _print_turn(steps: AsyncIterator[Step], chat: Conversation, screen: Screen) -> None:
    """Prints a turn while it runs; Ctrl-C cancels it, and the conversation stays usable."""
    started_s = time.monotonic()
    used = Usage()

    async def follow() -> None:
        nonlocal used
        screen.busy(chat.model.name)
        async for step in steps:
            screen.step(step)
            if step.call is not None:
                used += step.call.usage
            screen.busy("the tools" if step.message.tool_calls else chat.model.name)

    turn = asyncio.create_task(follow())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, turn.cancel)
    stopped = False
    try:
        await turn
    except asyncio.CancelledError:
        stopped = True
    finally:
        screen.idle()
        screen.end_line()
        loop.remove_signal_handler(signal.SIGINT)
    if stopped:
        click.echo("(stopped; what arrived is recorded. Ask on, /retry answers again, /undo takes it back)")
    outcome = chat.loop.outcome
    if outcome and outcome.stop_reason not in (StopReason.COMPLETED, StopReason.CANCELLED):
        click.echo(outcome_text(outcome), err=True)
    click.echo(click.style(_turn_text(used, time.monotonic() - started_s, chat), dim=True))


def _turn_text(used: Usage, seconds: float, chat: Conversation) -> str:
    """The cost of the turn, and of the conversation so far."""
    turn = f"this turn: {used.prompt:,} tokens in, {used.completion:,} out, {seconds:.1f} s"
    return f"[{turn} | conversation: {spent_text(chat.loop.usage, chat.loop.cost_usd)}]"


def _prompt_session(config: Config) -> PromptSession[str]:
    """A prompt with history in the home, completion of slash commands, and Alt-Enter for a new line."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    history = config.home / "history"
    config.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    history.touch(mode=0o600)
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        history=FileHistory(str(history)),
        completer=WordCompleter([f"/{name}" for name in COMMANDS], sentence=True),
        complete_while_typing=False,
        key_bindings=keys,
    )
