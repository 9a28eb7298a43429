"""Errors between the engine's processes: sent as type, message and hint, because some cannot be pickled."""

from __future__ import annotations

from hermes.engine.info import EngineClosedError
from hermes.engine.types import EngineCapacityError, EngineUserError, NotFiniteError
from hermes.errors import HermesError, HostError


class ParametersNeededError(HermesError):
    """The worker does not have the adapter any more: the call has to be sent again with its parameters."""


SentError = tuple[str, str, str]

_ERRORS: dict[str, type[HermesError]] = {
    error.__name__: error
    for error in (
        EngineUserError,
        EngineCapacityError,
        EngineClosedError,
        HostError,
        ParametersNeededError,
        HermesError,
    )
}


def encode_error(error: BaseException) -> SentError:
    if isinstance(error, HermesError):
        return type(error).__name__, error.message, error.hint
    return "", f"{type(error).__name__}: {error}", ""


def decode_error(encoded: SentError) -> HermesError:
    name, message, hint = encoded
    if name == NotFiniteError.__name__:
        return NotFiniteError()
    return _ERRORS.get(name, HermesError)(message, hint)
