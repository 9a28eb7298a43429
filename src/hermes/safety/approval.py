"""Who may run what: a policy decides from rules, a person decides where no rule does.

The policy looks at the parsed command, never at text that came from a model or a tool's output. Rules, first
that applies: a deny pattern refuses; an isolating sandbox allows; a command whose every part only looks,
or fits an allow pattern, is allowed; a person is asked; without one it is refused.

A deny pattern is a guard rail, not a fence: it also refuses where the denied words merely occur one after
another, but a program can still do the same by another name. The fence is the sandbox.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Literal, Protocol

from hermes.errors import ConfigError, ToolError
from hermes.safety.harmless import is_harmless, is_inside
from hermes.safety.shell import GlobWord, Simple, split
from hermes.safety.text import clip

Answer = Literal["once", "always", "no"]
Ask = Callable[[str, str], Awaitable[Answer]]
"""Puts an action (its kind and exact text) to a person."""
_UNATTENDED_HINT = (
    "Use an isolating sandbox (--sandbox bubblewrap), allow the command in approval.allow, "
    "or allow everything with --yes."
)
_BETWEEN_WORDS = re.compile(r"[\s;&|()<>`$\"'{}\\]+")


class Verdict(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    REFUSE = "refuse"


class Approver(Protocol):
    """Asked before a tool does something that could matter."""

    async def approve(self, kind: str, action: str) -> None:
        """Returns if the action may go ahead; raises ToolError(kind='refused') if not.

        `kind` is what sort of action it is ('command', 'mcp_server'), `action` its exact text.
        """
        ...


@dataclass(frozen=True)
class ApprovalPolicy:
    allow: tuple[str, ...]
    """Patterns of commands that need no question, word by word: 'pytest *', 'npm run build'. Each word is a
    glob; a last word '*' stands for any further arguments, none included."""
    deny: tuple[str, ...]
    """Patterns of commands that are always refused, whatever arguments follow."""
    interactive: bool
    """True if a person is there to be asked."""
    isolated: bool
    """True if the sandbox keeps commands away from the host."""
    workspace: str | None = None
    """Where the agent works; commands that only look may look at absolute paths inside it."""

    def __post_init__(self) -> None:
        for pattern in (*self.allow, *self.deny):
            _words(pattern)

    def decide(self, command: str) -> Verdict:
        if self.denying(command) is not None:
            return Verdict.REFUSE
        if self.isolated:
            return Verdict.ALLOW
        parts = split(command)
        if parts is not None and all(map(self._needs_no_question, parts)):
            return Verdict.ALLOW
        return self.without_rule

    def denying(self, command: str) -> str | None:
        """The deny pattern that refuses the command, if one does."""
        parts = split(command) or []
        return next((pattern for pattern in self.deny if _denies(_words(pattern), command, parts)), None)

    @property
    def without_rule(self) -> Verdict:
        return Verdict.ASK if self.interactive else Verdict.REFUSE

    def _needs_no_question(self, part: Simple) -> bool:
        if part.assigns or part.writes:
            return False
        if not all(file is not None and is_inside(file, self.workspace) for file in part.reads):
            return False
        if not part.argv or is_harmless(part.argv, self.workspace):
            return True
        return any(_allows(_words(pattern), part.argv) for pattern in self.allow)


@dataclass
class PolicyApprover:
    """Applies a policy to commands; everything else is asked about, or refused when nobody is there."""

    policy: ApprovalPolicy
    ask: Ask | None = None
    approved: set[tuple[str, str]] = field(default_factory=set)
    """Actions, by kind and exact text, that need no further question; 'always' adds to them."""

    async def approve(self, kind: str, action: str) -> None:
        shown = f"the {kind.replace('_', ' ')} {clip(action, 500)!r}"
        if kind == "command":
            pattern = self.policy.denying(action)
            if pattern is not None:
                raise _refusal(
                    f"{shown} is denied by the user's rule '{pattern}'.", "The rule is in approval.deny."
                )
        if (kind, action) in self.approved:
            return
        verdict = self.policy.decide(action) if kind == "command" else self.policy.without_rule
        if verdict is Verdict.ALLOW:
            return
        if verdict is Verdict.REFUSE or self.ask is None:
            raise _refusal(
                f"{shown} needs a person's approval, and nobody is there to give it.", _UNATTENDED_HINT
            )
        answer = await self.ask(kind, action)
        if answer == "always":
            self.approved.add((kind, action))
        elif answer != "once":
            raise _refusal(f"the user refused {shown}. Do not try it again in another form.")


class AllowAll:
    """Approves everything: the user said so beforehand."""

    async def approve(self, kind: str, action: str) -> None:
        return None


def _words(pattern: str) -> list[str]:
    try:
        words = shlex.split(pattern)
    except ValueError as error:
        words = []
        problem = str(error).lower()
    else:
        problem = "it is empty"
    if not words:
        raise ConfigError(
            f"the approval pattern {pattern!r} cannot be read: {problem}.",
            "Write it as a command line whose words may hold * and ?, such as 'pytest *'.",
        )
    return words


def _allows(words: Sequence[str], argv: Sequence[str | None]) -> bool:
    fixed = words[:-1] if words[-1] == "*" else words
    if len(argv) < len(fixed) or (fixed is words and len(argv) > len(fixed)):
        return False
    return all(_is_word(arg) and fnmatchcase(arg or "", word) for arg, word in zip(argv, fixed, strict=False))


def _is_word(argument: str | None) -> bool:
    """True if the argument is known before it runs."""
    return argument is not None and not isinstance(argument, GlobWord)


def _denies(words: Sequence[str], command: str, parts: Sequence[Simple]) -> bool:
    fixed = words[:-1] if words[-1] == "*" and len(words) > 1 else words
    texts = [[arg or "" for arg in part.argv] for part in parts]
    texts.append([word for word in _BETWEEN_WORDS.split(command) if word])
    return any(_occurs(fixed, text) for text in texts)


def _occurs(words: Sequence[str], text: Sequence[str]) -> bool:
    """True if the words stand one after another somewhere; a program counts under any path."""
    for start in range(len(text) - len(words) + 1):
        found = [text[start].rpartition("/")[2], *text[start + 1 : start + len(words)]]
        if all(fnmatchcase(have, want) for have, want in zip(found, words, strict=True)):
            return True
    return False


def _refusal(message: str, hint: str = "") -> ToolError:
    return ToolError(message, hint, kind="refused")
