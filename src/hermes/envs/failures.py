"""Failed groups: classified, counted by reason, retried or dropped, and never scored.

A failure is the infrastructure's (model server, sandbox, network) or the environment's (its code raised).
After an infrastructure failure the item is tried again; another failure would only repeat itself. A setting
that can never work is neither: it ends the run immediately. So does a long series of groups of which none is
usable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hermes.batch.reward import GraderError
from hermes.core.stall_guard import StallGuard
from hermes.envs.author_code import error_location
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
"""Attempts at one item before it is dropped."""
FAILED = "failed"
"""Stall category of groups that were dropped for any reason but the policy's."""
NOTHING_WRITTEN = "nothing written"
"""Stall category of items of which no group was written, whatever the reason."""
POLICY_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "too long": "Raise the trainer's longest sequence, or lower max_token_length.",
        "equal scores": "Use easier or harder tasks, or larger groups.",
        "no group": "The environment returns none where no answer is usable: use easier tasks; see its log.",
        "wrong size": "The environment leaves answers out, or ignores --env.group_size; see its log.",
    }
)
"""Reasons for which a group is missing or rejected that are due to the policy and no error of the
environment, with a hint. Environments filter answers themselves (too short, none right), so that a weak
policy can give many such groups in a row."""


class EnvironmentRunError(HermesError):
    """A run of an environment cannot continue."""


class GroupDroppedError(HermesError):
    """Raised by collect_trajectories to drop a group for a reason that is counted by its name."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class GroupFailure:
    """Why there is no group."""

    reason: str
    """A short name to count by: provider, sandbox, timeout, environment, no group …"""
    text: str
    infrastructure: bool
    fatal: bool = False


NO_GROUP = GroupFailure("no group", "the environment returned no group", infrastructure=False)
TIMED_OUT = GroupFailure("timeout", "the group took longer than worker_timeout", infrastructure=False)
STOPPED = GroupFailure("stopped", "the run ended before the group was complete", infrastructure=False)


def classify(error: BaseException) -> GroupFailure:
    """The failure that an exception raised by an environment's code stands for."""
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
    location = error_location(error)
    return GroupFailure("environment", f"{text} ({location})" if location else text, infrastructure=False)


def _provider_failure(text: str, status: int | None) -> GroupFailure:
    if status in (401, 403):
        return GroupFailure("settings", text, infrastructure=False, fatal=True)
    if status is not None and 400 <= status < 500 and status not in (408, 409, 429):
        return GroupFailure("refused by the model server", text, infrastructure=False)
    return GroupFailure("provider", text, infrastructure=True)


def _from_model_client(error: BaseException) -> bool:
    """Whether the error's class is defined by the HTTP stack of the model clients."""
    packages = ("openai", "httpx", "httpx2", "httpcore", "httpcore2", "aiohttp")
    return type(error).__module__.partition(".")[0] in packages


@dataclass
class GroupTally:
    """Counts the groups of a run by what became of them."""

    completed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Groups by the reason they were dropped for."""
    retried: Counter[str] = field(default_factory=Counter)
    last_failure: GroupFailure | None = None
    stall: StallGuard = field(default_factory=StallGuard)

    def complete(self) -> None:
        self.completed += 1
        self.stall.record_useful()

    def retry(self, failure: GroupFailure) -> None:
        self.retried[failure.reason] += 1
        self.last_failure = failure

    def drop(self, failure: GroupFailure) -> None:
        self._drop(failure, _category(failure.reason))

    def reject(self, reason: str) -> None:
        """A complete group that cannot be used."""
        failure = GroupFailure(reason, f"a group was rejected: {reason}", infrastructure=False)
        self._drop(failure, _category(reason))

    def _drop(self, failure: GroupFailure, category: str) -> None:
        self.dropped[failure.reason] += 1
        self.stall.record_useless(category)
        self.last_failure = failure

    def check_stall(self, limits: Mapping[str, int], hint: str) -> None:
        """Raises EnvironmentRunError if as many groups in a row were useless as `limits` allows."""
        stall = self.stall.find_stall(limits)
        if stall is None:
            return
        limit = limits[stall.category]
        if stall.category in POLICY_REASONS:
            raise EnvironmentRunError(
                f"{limit} groups in a row were of no use: {stall.category}", POLICY_REASONS[stall.category]
            )
        assert self.last_failure is not None, "a group was dropped"
        groups = f"{limit} groups in a row" if limit > 1 else "a group"
        raise EnvironmentRunError(
            f"{groups} failed ({self.last_failure.reason}): {self.last_failure.text}", hint
        )

    def describe(self) -> str:
        """One line for the log."""
        parts = [f"{self.completed} groups completed"]
        parts += [f"{count} retried ({reason})" for reason, count in sorted(self.retried.items())]
        parts += [f"{count} dropped ({reason})" for reason, count in sorted(self.dropped.items())]
        return ", ".join(parts)


def _category(reason: str) -> str:
    """The stall category that a dropped group counts under."""
    return reason if reason in POLICY_REASONS else FAILED
