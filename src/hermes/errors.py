"""Every error Hermes raises on purpose, one type per boundary.

A `HermesError` has two texts for the user: the message (the error and its location) and the hint (the
fix). The command line prints both and exits with `exit_code`; nothing that derives from it ever reaches
the user as a traceback. An exception that is *not* a `HermesError` is a bug, and is allowed to look like
one.

The boundary types matter beyond printing: the agent loop turns them into the `Boundary` of a
trajectory's outcome, so that a provider's failure is never mistaken for the policy's.
"""

from __future__ import annotations


class HermesError(Exception):
    """Base of all expected failures."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(HermesError):
    """A request names something that does not exist or is not valid."""

    exit_code = 2


class ConfigError(HermesError):
    """A setting is malformed, unknown or contradictory."""

    exit_code = 2


class NothingToEvaluateError(ConfigError):
    """An environment holds no task out of training. Its exit code tells a trainer that nothing failed."""

    exit_code = 3


class HostError(HermesError):
    """This machine cannot continue: a full disk, a directory that cannot be written. No task is to blame."""


class StoreError(HostError):
    """The database could not be opened, read or written."""


class ProviderError(HermesError):
    """A model endpoint failed. `retryable` says whether a later attempt can succeed."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        retryable: bool = False,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.retryable = retryable
        self.status = status
        self.retry_after_s = retry_after_s


class AuthError(ProviderError):
    """The endpoint refused the key. Never retried: every further call would fail the same way."""


class ContextOverflowError(ProviderError):
    """The conversation no longer fits the model's context window."""


class LimitError(HermesError):
    """A hard limit on calls, tokens, cost or time was reached, checked before spending more."""

    def __init__(self, limit: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.limit = limit


class SandboxError(HermesError):
    """The sandbox itself failed to start or died; not a command that exited non-zero."""


class ToolError(HermesError):
    """A tool call failed. Its message is sent to the model, as data.

    `kind` is one of core.step.ToolErrorKind's values.
    """

    def __init__(self, message: str, hint: str = "", *, kind: str = "failed") -> None:
        super().__init__(message, hint)
        self.kind = kind


class MissingDependencyError(HermesError):
    """An optional package is not installed; the hint is the exact install line."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed.",
            f"pip install 'hermes-research[{extra}]'",
        )
