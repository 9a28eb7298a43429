"""The interactive chat: reads lines, prints steps, asks the user.

Ctrl-C stops the turn, not the program; Ctrl-D or /quit exits. A line that begins with a slash is a
command. Output of the model and of tools is made safe for the terminal before it is printed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.agent.build import UserCallbacks, open_writer
from hermes.agent.chat import Conversation
from hermes.cli import question
from hermes.cli.chat.options import ChatOptions, load_config, make_plan, open_chat_model
from hermes.cli.chat.slash import COMMANDS, ExitChat, run_command
from hermes.cli.render import call_text, money, one_line
from hermes.config.load import Config
from hermes.core import Step, StepKind, StopReason
from hermes.errors import HermesError
from hermes.models.base import StreamDelta
from hermes.safety.approval import Answer
from hermes.safety.exact import exact
from hermes.safety.text import printable

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

_PROMPT = "> "
_TITLES = {
    "command": "The agent wants to run:",
    "path": "The agent wants to:",
    "process_input": "The agent wants to type into a running program:",
    "mcp_server": "An MCP server is to be started on this machine, outside the sandbox:",
    "mcp_tools": "An MCP server offers tools that you have not agreed to:",
    "skill": "The agent wants to change what later agents read:",
    "rl_environment": "The agent wants to run this file on this machine, outside the sandbox:",
}
"""What a person is asked, by the kind of action."""


async def run_repl(options: ChatOptions) -> None:
    config = load_config(options)
    model = open_chat_model(config, options)
    screen = Screen(config)
    plan = make_plan(config, model.name, options)
    plan = replace(
        plan,
        workspace=plan.workspace or Path.cwd(),
        user=UserCallbacks(screen.approve, screen.answer, screen.notify),
        memory=True,
        on_delta=screen.delta,
    )
    click.echo(f"{model.name}  tools: {', '.join(plan.toolsets) or 'none'}  (/help, Ctrl-D leaves)")
    with open_writer(config) as writer:
        try:
            async with Conversation(config, writer, model, plan) as chat:
                await _converse(chat, screen)
        finally:
            await model.close()


async def _converse(chat: Conversation, screen: Screen) -> None:
    while True:
        try:
            line = (await screen.read(_PROMPT)).strip()
        except KeyboardInterrupt:
            continue  # clears the line
        except EOFError:
            return
        if not line:
            continue
        try:
            steps = await run_command(chat, line) if line.startswith("/") else chat.send(line)
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

    async def follow() -> None:
        async for step in steps:
            screen.step(step)

    turn = asyncio.create_task(follow())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, turn.cancel)
    try:
        await turn
    except asyncio.CancelledError:
        click.echo("\n(stopped)")
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    outcome = chat.loop.outcome
    if outcome and outcome.stop_reason not in (StopReason.COMPLETED, StopReason.CANCELLED):
        click.echo(f"error: {outcome.stop_reason.value}: {printable(outcome.detail or '')}", err=True)
    usage = chat.loop.usage
    spent = f"{usage.prompt} + {usage.completion} tokens, cost {money(chat.loop.cost_usd)}"
    click.echo(click.style(f"[{spent}]", dim=True))


class Screen:
    """The terminal: reads lines, prints steps, asks the user."""

    def __init__(self, config: Config) -> None:
        self._session = _prompt_session(config)
        self._question = asyncio.Lock()
        """Locked while the user is asked a question: one at a time, and nothing is printed over it."""
        self._deferred_lines: list[str] = []
        self._streamed = False

    async def read(self, prompt: str) -> str:
        text: str = await self._session.prompt_async(prompt)
        return text

    def delta(self, delta: StreamDelta) -> None:
        if delta.reasoning:
            sys.stdout.write(click.style(printable(delta.reasoning), dim=True))
        if delta.text:
            sys.stdout.write(printable(delta.text))
        self._streamed = True
        sys.stdout.flush()

    def step(self, step: Step) -> None:
        if step.kind is StepKind.MODEL:
            if self._streamed:
                click.echo()
            self._streamed = False
            for call in step.message.tool_calls:
                self._show(click.style(f"-> {one_line(call_text(call), 200)}", fg="yellow"))
        if step.result is not None:
            state = "ok" if step.result.ok else f"{step.result.error_kind}"
            line = f"<- {printable(step.result.name)}: {state}, {step.result.duration_ms / 1000:.2f} s"
            self._show(click.style(f"{line}  {one_line(step.message.content, 100)}", dim=True))

    def notify(self, notice: str) -> None:
        self._show(click.style(exact(notice), bold=True))

    def _show(self, line: str) -> None:
        if self._question.locked():
            self._deferred_lines.append(line)
        else:
            click.echo(line)

    @asynccontextmanager
    async def _question_prompt(self) -> AsyncIterator[None]:
        async with self._question:
            try:
                yield
            finally:
                for line in self._deferred_lines:
                    click.echo(line)
                self._deferred_lines.clear()

    async def approve(self, kind: str, action: str) -> Answer:
        """Asks for approval: once, always or no; an interrupted question counts as no."""
        async with self._question_prompt():
            question.show_action(_TITLES.get(kind, f"The agent wants to do this ({kind}):"), action)
            if not question.has_person():
                click.echo("(refused: standard input is no terminal, so nobody can answer)", err=True)
                return "no"
            try:
                reply = (await question.ask("Allow? [y]es once, [a]lways, [N]o: ")).lower()
            except (KeyboardInterrupt, EOFError):
                return "no"
        decisions: dict[str, Answer] = {"y": "once", "yes": "once", "a": "always", "always": "always"}
        return decisions.get(reply.strip(" \t"), "no")

    async def answer(self, text: str, choices: tuple[str, ...]) -> str:
        listed = (f"{number}. {choice}" for number, choice in enumerate(choices, 1))
        async with self._question_prompt():
            question.show_action("The agent asks:", "\n".join((text, *listed)))
            reply = (await question.ask("Answer: ")).strip()
        if reply.isdecimal() and 1 <= int(reply) <= len(choices):
            return choices[int(reply) - 1]
        return reply


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
