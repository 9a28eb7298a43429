"""What happens to a group that could not be made: counted by reason, tried again or given up, never scored.

A failure belongs to the infrastructure (the model's server, a sandbox, the network) or to the environment
(its code raised). The first is worth another try with the same item; the second would fail the same way.
A setting that can never work is neither: it ends the run at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hermes.batch.reward import GraderError
from hermes.errors import (
    ConfigError,
    HermesError,
    HostError,
    MissingDependencyError,
    ProviderError,
    SandboxError,
    UsageError,
)

MAX_TRIES = 3
"""How often one item is tried before it is given up."""


POLICYS_DOING = ("equal scores", "too long")
"""Reasons to leave a group out that say nothing against the environment."""


class EnvironmentRunError(HermesError):
    """A run of an environment cannot go on."""


class GroupDroppedError(HermesError):
    """Raised by collect_trajectories to give up a group for a reason worth counting by name."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class GroupFailure:
    """Why a group was not made."""

    reason: str
    """A short name to count by: provider, sandbox, timeout, environment, no group …"""
    text: str
    infrastructure: bool
    fatal: bool = False


NO_GROUP = GroupFailure("no group", "the environment returned no group", infrastructure=False)
TIMED_OUT = GroupFailure("timeout", "the group took longer than worker_timeout", infrastructure=False)
STOPPED = GroupFailure("stopped", "the run ended before the group was made", infrastructure=False)


def classify(error: BaseException) -> GroupFailure:
    """What kind of failure an exception out of an environment's code is."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, GroupDroppedError):
        return GroupFailure(error.reason, error.message, infrastructure=False)
    if isinstance(error, ConfigError | UsageError | MissingDependencyError | HostError):
        return GroupFailure("settings", error.message, infrastructure=False, fatal=True)
    if isinstance(error, ProviderError):
        return _provider_failure(error.message, error.status)
    if isinstance(error, SandboxError):
        return GroupFailure("sandbox", error.message, infrastructure=True)
    if isinstance(error, NotImplementedError):
        return GroupFailure("settings", text, infrastructure=False, fatal=True)
    if isinstance(error, GraderError):
        return GroupFailure("grader", text, infrastructure=False)
    if isinstance(error, ConnectionError | TimeoutError) or _from_model_client(error):
        return _provider_failure(text, getattr(error, "status_code", None))
    return GroupFailure("environment", text, infrastructure=False)


def _provider_failure(text: str, status: int | None) -> GroupFailure:
    if status in (401, 403):
        return GroupFailure("settings", text, infrastructure=False, fatal=True)
    if status is not None and 400 <= status < 500 and status not in (408, 409, 429):
        return GroupFailure("refused by the model server", text, infrastructure=False)
    return GroupFailure("provider", text, infrastructure=True)


def _from_model_client(error: BaseException) -> bool:
    """Errors of the HTTP stack under the model clients, told by where their class was made."""
    packages = ("openai", "httpx", "httpx2", "httpcore", "httpcore2", "aiohttp")
    return type(error).__module__.partition(".")[0] in packages


@dataclass
class GroupTally:
    """How the groups of a run fared."""

    made: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Reason → groups given up."""
    retried: Counter[str] = field(default_factory=Counter)
    in_a_row: int = 0
    """Groups given up since the last that was used."""
    fruitless: Counter[str] = field(default_factory=Counter)
    """Of the policy's doings: groups left out since the last that was used."""
    last: GroupFailure | None = None

    def success(self) -> None:
        self.made += 1
        self.in_a_row = 0
        self.fruitless.clear()

    def retry(self, failure: GroupFailure) -> None:
        self.retried[failure.reason] += 1
        self.last = failure

    def leave_out(self, reason: str) -> None:
        """A group that was made, but cannot be used. Where that is the policy's doing, it is no failure."""
        in_a_row = self.in_a_row
        self.drop(GroupFailure(reason, f"a group was left out: {reason}", infrastructure=False))
        if reason in POLICYS_DOING:
            self.in_a_row = in_a_row
            self.fruitless[reason] += 1

    def drop(self, failure: GroupFailure) -> None:
        self.dropped[failure.reason] += 1
        self.in_a_row += 1
        self.last = failure

    def describe(self) -> str:
        """For people: what was made, and what was not and why."""
        parts = [f"{self.made} groups made"]
        parts += [f"{count} tried again ({reason})" for reason, count in sorted(self.retried.items())]
        parts += [f"{count} given up ({reason})" for reason, count in sorted(self.dropped.items())]
        return ", ".join(parts)
