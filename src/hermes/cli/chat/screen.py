"""The terminal of a chat or a question: prints steps, shows that something goes on, asks the user.

Output of the model and of tools is made safe for the terminal before it is printed. With `answer_only` the
answer goes to standard output and everything else to standard error.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import click

from hermes.cli import question
from hermes.cli.render import call_text, money, one_line, readable_result
from hermes.cli.terminal.colour import use_colour
from hermes.cli.terminal.waiting import Waiting, can_redraw
from hermes.core import Outcome, Step, StepKind, Usage
from hermes.models.base import StreamDelta
from hermes.safety.approval import Answer
from hermes.safety.exact import exact
from hermes.safety.text import printable

_TITLES = {
    "command": "The agent wants to run:",
    "path": "The agent wants to:",
    "process_input": "The agent wants to type into a running program:",
    "mcp_server": "An MCP server is to be started on this machine, outside the sandbox:",
    "mcp_tools": "An MCP server offers tools that you have not agreed to:",
    "skill": "The agent wants to change what later agents read:",
    "training": "The agent wants to run this command on this machine, outside the sandbox:",
    "rl_environment": "The agent wants to run this file on this machine, outside the sandbox:",
}
"""The question to a person, by the kind of action."""
_RESULT_LINES = 4
_RESULT_CHARS = 100
_HEADING = re.compile(r"(#{1,6}) +(.*)")
_BULLET = re.compile(r"( *)[-*+] +(.*)")
_BULLETED = re.compile(r" *[•│] ")
_WORDS = re.compile(r" *[^ ]+ *")
_QUOTE = re.compile(r"> ?(.*)")
_SPAN = re.compile(r"`([^`]+)`|\*\*(\S(?:.*?\S)?)\*\*")


def spent_text(usage: Usage, cost_usd: float | None) -> str:
    return f"{usage.prompt:,} tokens in, {usage.completion:,} out, cost {money(cost_usd)}"


def outcome_text(outcome: Outcome) -> str:
    where = f" ({outcome.boundary.value})" if outcome.boundary else ""
    return f"error: {outcome.stop_reason.value}{where}: {printable(outcome.detail or '')}"


class Screen:
    """Prints one conversation. Examples that are not part of the dataset are not shown."""

    def __init__(self, *, quiet: bool = False, answer_only: bool = False) -> None:
        self._quiet = quiet
        self._err = answer_only
        self._waiting = Waiting()
        self._question = asyncio.Lock()
        """Locked while the user is asked a question: one at a time, and nothing is printed over it."""
        self._deferred_lines: list[str] = []
        self._open_line = False
        """Whether the last thing printed was a piece of an answer, without a line break."""
        self._thinking = False
        self._markdown: MarkdownStream | None = None
        if can_redraw(sys.stdout) and use_colour():
            self._markdown = MarkdownStream(_write)

    def busy(self, what: str) -> None:
        """The conversation waits for the model or for tools, until something is printed."""
        if not self._question.locked():
            self._waiting.start(f"waiting for {printable(what)}")

    def idle(self) -> None:
        self._waiting.stop()

    def delta(self, delta: StreamDelta) -> None:
        self._waiting.stop()
        if delta.retry:
            self.end_line()
            click.echo(click.style(f"({printable(delta.retry)})", dim=True), err=True)
            self.busy("the next attempt")
            return
        if self._quiet:
            return
        if delta.reasoning:
            _write(click.style(printable(delta.reasoning), dim=True), err=self._err)
            self._thinking = True
        if delta.text:
            self._end_thinking()
            text = printable(delta.text)
            if self._markdown is not None:
                self._markdown.feed(text)
            else:
                _write(text)
            self._open_line = True

    def _end_thinking(self) -> None:
        if self._thinking:
            _write("\n", err=self._err)
        self._thinking = False

    def end_line(self) -> None:
        """Ends the line of an answer or of thinking, if one is open."""
        self._end_thinking()
        if self._open_line:
            if self._markdown is not None:
                self._markdown.end()
            _write("\n")
        self._open_line = False

    def step(self, step: Step) -> None:
        self._waiting.stop()
        if step.ephemeral or self._quiet:
            return
        if step.kind is StepKind.MODEL:
            self.end_line()
            for call in step.message.tool_calls:
                self._show(click.style(f"-> {one_line(call_text(call), 200)}", fg="yellow"))
        if step.result is not None:
            state = "ok" if step.result.ok else f"{step.result.error_kind}"
            line = f"<- {printable(step.result.name)}: {state}, {step.result.duration_ms / 1000:.2f} s"
            self._show(click.style(f"{line}{_result_text(step.message.content)}", dim=True))

    def notify(self, notice: str) -> None:
        self._show(click.style(exact(notice), bold=True))

    def _show(self, line: str) -> None:
        if self._question.locked():
            self._deferred_lines.append(line)
        else:
            self._waiting.stop()
            click.echo(line, err=self._err)

    @asynccontextmanager
    async def _question_prompt(self) -> AsyncIterator[None]:
        async with self._question:
            self._waiting.stop()
            self.end_line()
            try:
                yield
            finally:
                for line in self._deferred_lines:
                    click.echo(line, err=self._err)
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


def _result_text(content: str) -> str:
    """A short result beside its title; a longer one as its first lines below it, with real line breaks."""
    text = readable_result(content)
    lines = [line for line in printable(text).splitlines() if line.strip()]
    if len(lines) <= 1:
        return f"  {one_line(text, _RESULT_CHARS)}" if lines else ""
    excerpt = [
        f"\n     {line if len(line) <= _RESULT_CHARS else line[: _RESULT_CHARS - 1] + '…'}" for line in lines
    ]
    more = f"\n     … {len(lines) - _RESULT_LINES} lines more" if len(lines) > _RESULT_LINES else ""
    return "".join(excerpt[:_RESULT_LINES]) + more


def _write(text: str, *, err: bool = False) -> None:
    click.echo(text, nl=False, err=err)
    (sys.stderr if err else sys.stdout).flush()


def style_line(line: str, *, in_code: bool) -> str:
    """One line with its marks as styles; the line unchanged if it has none. Fences are the caller's."""
    if in_code:
        return click.style(line, fg="cyan") if line else line
    if heading := _HEADING.fullmatch(line):
        return click.style(heading[2], bold=True)
    if quote := _QUOTE.fullmatch(line):
        return click.style(f"│ {quote[1]}", dim=True)
    if bullet := _BULLET.fullmatch(line):
        return f"{bullet[1]}• {_spans(bullet[2])}"
    return _spans(line)


def _spans(text: str) -> str:
    return _SPAN.sub(
        lambda span: click.style(span[1], fg="cyan") if span[1] else click.style(span[2], bold=True), text
    )


def _wrap_words(styled: str, columns: int) -> str:
    """A line of an answer broken between words, with the indent of its bullet."""
    from prompt_toolkit.utils import get_cwidth

    plain = click.unstyle(styled)
    if get_cwidth(plain) <= columns:
        return styled
    marks = _BULLETED.match(plain)
    indent = " " * len(marks[0] if marks else "")
    lines, used = [""], 0
    for word in _WORDS.findall(styled):
        width = get_cwidth(click.unstyle(word.rstrip(" ")))
        if used + width > columns and used > len(indent):
            lines.append(indent)
            used = len(indent)
        lines[-1] += word
        used += get_cwidth(click.unstyle(word))
    return "\n".join(line.rstrip(" ") for line in lines)


def is_fence(line: str) -> bool:
    return line.lstrip().startswith(("```", "~~~"))


class MarkdownStream:
    """Prints the pieces of one answer; `end` after the last one."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._line = ""
        self._in_code = False

    def feed(self, text: str) -> None:
        *complete, rest = text.split("\n")
        for part in complete:
            self._write(part)
            self._line += part
            self._restyle()
            self._write("\n")
            self._line = ""
        self._write(rest)
        self._line += rest

    def end(self) -> None:
        """The answer is complete: its last line gets its styles too."""
        self._restyle()
        self._line, self._in_code = "", False

    def _restyle(self) -> None:
        line = self._line
        if is_fence(line):
            self._in_code = not self._in_code
            styled = click.style(line, dim=True)
        else:
            styled = style_line(line, in_code=self._in_code)
        size = shutil.get_terminal_size()
        if not self._in_code and not is_fence(line):
            styled = _wrap_words(styled, size.columns)
        if styled == line:
            return
        from prompt_toolkit.utils import get_cwidth

        rows_above = max(0, get_cwidth(line) - 1) // size.columns
        if rows_above >= size.lines - 1:
            return
        up = f"\x1b[{rows_above}A" if rows_above else ""
        self._write(f"{up}\r\x1b[J{styled}")
