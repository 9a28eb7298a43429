"""Approval of actions: a policy decides by rules, the user decides where no rule applies.

The policy uses the parsed command, never text from a model or a tool's output. The first rule that applies
decides: a deny pattern refuses; an isolating sandbox allows; a command is allowed if each of its parts is
read-only or matches an allow pattern; else the user is asked, and without a user the command is refused.

A deny pattern is a guard rail, not a security boundary: it also refuses where the denied words merely occur
in sequence, but a program can do the same under another name. The security boundary is the sandbox.
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
from hermes.safety.harmless import ProgramArguments, Surroundings, is_harmless, split
from hermes.safety.private import PrivatePlaces
from hermes.safety.text import clip

Answer = Literal["once", "always", "no"]
Ask = Callable[[str, str], Awaitable[Answer]]
"""Asks the user about an action: its kind and exact text."""
_UNATTENDED_HINT = (
    "Use an isolating sandbox (--sandbox bubblewrap), allow the command in approval.allow, "
    "or allow everything with --yes."
)
_COMMANDS = frozenset(("command", "process_input"))
"""Kinds of actions that run as the sandbox's processes do."""
_WORD_BREAKS = re.compile(r"[\s;&|()<>`$\"'{}\\]+")


class Verdict(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    REFUSE = "refuse"


class Approver(Protocol):
    """Decides about an action before a tool takes it."""

    async def approve(self, kind: str, action: str) -> None:
        """Returns if the action is approved; raises ToolError(kind='refused') if not.

        `kind` is the sort of action ('command', 'process_input', 'path', 'mcp_server', 'mcp_tools', 'skill',
        'rl_environment', 'training'), `action` its exact text.
        """
        ...


@dataclass(frozen=True)
class ApprovalPolicy:
    allow: tuple[str, ...]
    """Patterns of commands that run without asking, word by word: 'pytest *', 'npm run build'. Each word is a
    glob; a last word '*' matches any number of further arguments."""
    deny: tuple[str, ...]
    """Patterns of commands that are always refused, with any further arguments."""
    interactive: bool
    """True if a user can be asked."""
    isolated: bool
    """True if the sandbox isolates commands from the host."""
    workspace: str | None = None
    """The agent's directory; read-only commands may read absolute paths inside it."""
    places: PrivatePlaces = field(default_factory=PrivatePlaces.of_this_user)
    """Actions that are asked about even inside the workspace."""

    def __post_init__(self) -> None:
        for pattern in (*self.allow, *self.deny):
            _words(pattern)

    def decide(self, command: str) -> Verdict:
        if self.deny_pattern(command) is not None:
            return Verdict.REFUSE
        if self.isolated:
            return Verdict.ALLOW
        parts = split(command)
        if parts is not None and self._are_safe(parts):
            return Verdict.ALLOW
        return self.default_verdict

    def deny_pattern(self, command: str) -> str | None:
        """The deny pattern that refuses the command, if one does."""
        parts = split(command) or []
        return next((pattern for pattern in self.deny if _denies(_words(pattern), command, parts)), None)

    @property
    def default_verdict(self) -> Verdict:
        return Verdict.ASK if self.interactive else Verdict.REFUSE

    def _are_safe(self, parts: Sequence[ProgramArguments]) -> bool:
        surroundings: Surroundings | None = Surroundings(self.workspace, self.places)
        for part in parts:
            if surroundings is None:
                return False
            if not is_harmless(part, surroundings) and not self._is_allowed(part):
                return False
            surroundings = surroundings.after(part)
        return True

    def _is_allowed(self, part: ProgramArguments) -> bool:
        return any(_allows(_words(pattern), part) for pattern in self.allow)


@dataclass
class PolicyApprover:
    """Applies a policy to commands; other actions need the user, and are refused without one."""

    policy: ApprovalPolicy
    ask: Ask | None = None
    approved: set[tuple[str, str]] = field(default_factory=set)
    """Actions, by kind and exact text, that are approved for good; the answer 'always' adds one."""

    async def approve(self, kind: str, action: str) -> None:
        description = f"the {kind.replace('_', ' ')} {clip(action, 500)!r}"
        if kind in _COMMANDS:
            pattern = self.policy.deny_pattern(action)
            if pattern is not None:
                raise _refusal(
                    f"{description} is denied by the user's rule '{pattern}'.",
                    "The rule is in approval.deny.",
                )
        if (kind, action) in self.approved:
            return
        verdict = self.policy.default_verdict
        if kind == "command":
            verdict = self.policy.decide(action)
        elif kind == "process_input" and self.policy.isolated:
            verdict = Verdict.ALLOW
        if verdict is Verdict.ALLOW:
            return
        if verdict is Verdict.REFUSE or self.ask is None:
            raise _refusal(
                f"{description} needs the user's approval, and no user is present.", _UNATTENDED_HINT
            )
        decision = await self.ask(kind, action)
        if decision == "always":
            self.approved.add((kind, action))
        elif decision != "once":
            raise _refusal(f"the user refused {description}. Do not try it again in another form.")


class AllowAll:
    """Approves everything, as the user chose with --yes."""

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
            "Write it as a command line whose words may contain * and ?, such as 'pytest *'.",
        )
    return words


def _allows(words: Sequence[str], argv: ProgramArguments) -> bool:
    fixed = words[:-1] if words[-1] == "*" else words
    if len(argv) < len(fixed) or (fixed is words and len(argv) > len(fixed)):
        return False
    return all(arg is not None and fnmatchcase(arg, word) for arg, word in zip(argv, fixed, strict=False))


def _denies(words: Sequence[str], command: str, parts: Sequence[ProgramArguments]) -> bool:
    fixed = words[:-1] if words[-1] == "*" and len(words) > 1 else words
    texts = [[arg or "" for arg in part] for part in parts]
    texts.append([word for word in _WORD_BREAKS.split(command) if word])
    return any(_contains(fixed, text) for text in texts)


def _contains(words: Sequence[str], text: Sequence[str]) -> bool:
    """True if the words occur in sequence; a program matches under any path."""
    for start in range(len(text) - len(words) + 1):
        window = [text[start].rpartition("/")[2], *text[start + 1 : start + len(words)]]
        if all(fnmatchcase(word, pattern) for word, pattern in zip(window, words, strict=True)):
            return True
    return False


def _refusal(message: str, hint: str = "") -> ToolError:
    return ToolError(message, hint, kind="refused")
