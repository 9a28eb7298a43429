"""Converts failures of a server or the network to one typed error with a clear message.

Each message names the endpoint; each hint says what to do. Only this module decides what is retryable: 408,
409, 429, 5xx, broken connections, timeouts and invalid bodies are; a rejected key, a missing model, an
exhausted account and a conversation that is too long are not.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from hermes.config.secrets import can_be_secret
from hermes.core import JSON
from hermes.errors import AuthError, ContextOverflowError, ProviderError
from hermes.models.fields import as_object, as_text
from hermes.safety.redact import Redactor

if TYPE_CHECKING:
    import openai

_MAX_QUOTE_CHARS = 500
_TOO_LONG = (
    "context length",
    "context_length",
    "context window",
    "context size",
    "exceed_context",
    "prompt is too long",
    "too many tokens",
    "maximum number of tokens",
    "reduce the length",
)
_NO_CREDIT = ("insufficient_quota", "billing_hard_limit", "insufficient credits")
_NO_MODEL = ("is not a valid model", "model_not_found", "unknown model", "no such model")
_TLS_MISFITS = {
    "WRONG_VERSION_NUMBER": "The server uses plain HTTP: begin base_url with http://.",
    "RECORD_LAYER_FAILURE": "The server uses plain HTTP: begin base_url with http://.",
    "CERTIFICATE_VERIFY_FAILED": "This machine does not trust the server's certificate; SSL_CERT_FILE can "
    "name a file of authorities to trust.",
}
"""TLS failures that a retry would only repeat."""


@dataclass(frozen=True, slots=True)
class EndpointRef:
    """The endpoint that an error is about, for its message."""

    base_url: str
    model: str
    key_env: str | None
    key: str | None = field(default=None, repr=False)
    """The key that the server was sent; some servers repeat it in their errors."""

    def hide_key(self, text: str) -> str:
        if self.key is None or not can_be_secret(self.key):
            return text
        return Redactor({self.key_env or "API_KEY": self.key}).text(text)

    @property
    def url(self) -> str:
        """Without a user name and password that the address may contain."""
        parts = urlsplit(self.base_url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def from_openai(error: openai.OpenAIError, endpoint: EndpointRef) -> ProviderError:
    """The typed form of an exception of the openai package."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return from_status(error.status_code, error.body, error.response.headers, endpoint)
    if isinstance(error, openai.APIConnectionError):
        return from_network(error, endpoint)
    return from_report(error.body if isinstance(error, openai.APIError) else str(error), endpoint)


def from_report(error: JSON, endpoint: EndpointRef) -> ProviderError:
    """A failure that the server reports inside a success, or in the middle of a stream."""
    body = error if isinstance(error, dict) else {"message": str(error)}
    code = str(body.get("code"))
    status = int(code) if code.isdecimal() and 400 <= int(code) < 600 else None
    return from_status(status or (400 if _mentions(body, _TOO_LONG) else 502), body, {}, endpoint)


def from_status(status: int, body: JSON, headers: Mapping[str, str], endpoint: EndpointRef) -> ProviderError:
    """The error for an HTTP status, or for the same status reported inside a body."""
    server_message = _quote(body, endpoint)
    message = f"{endpoint.url} answered {status}" + (f": {server_message}" if server_message else "")
    if status in (401, 403):
        refusal = f"{endpoint.url} refused the API key ({status}): {server_message}"
        return AuthError(refusal, _key_hint(endpoint), status=status)
    if status == 402 or _mentions(body, _NO_CREDIT):
        hint = "The account has no credit left: add some, or use another key."
        return ProviderError(message, hint, status=status)
    if status in (400, 413, 422) and _mentions(body, _TOO_LONG):
        return ContextOverflowError(
            f"The conversation does not fit the context window of {endpoint.model}: {server_message}",
            "Start a new conversation, or use a model with a longer context.",
            status=status,
        )
    if 300 <= status < 400:
        message = f"{endpoint.url} redirects to {headers.get('location', 'elsewhere')}"
        return ProviderError(message, "Set base_url to that address.", status=status)
    retryable = status in (408, 409, 429) or status >= 500
    hint = "The server limits how many calls it takes; try again later." if status == 429 else ""
    return ProviderError(
        message, hint, retryable=retryable, status=status, retry_after_s=retry_after_s(headers, time.time())
    )


def concerns_model(error: ProviderError) -> bool:
    """Whether the error may mean that the server has no such model."""
    return error.status == 404 or (
        error.status == 400 and any(mark in error.message.lower() for mark in _NO_MODEL)
    )


def invalid_body(endpoint: EndpointRef, body: bytes, content_type: str) -> ProviderError:
    """A 200 response whose body is not the API's; a web page means that the address is wrong."""
    page = content_type.startswith("text/html")
    excerpt = endpoint.hide_key(body[:4000].decode("utf-8", "replace"))[:80]
    content = "a web page" if page else f"something that is not JSON: {excerpt!r}"
    return ProviderError(
        f"{endpoint.url} answered with {content}.",
        "Is base_url right? It usually ends in /v1." if page else "",
        retryable=not page,
    )


def timeout_error(endpoint: EndpointRef, timeout_s: float, last: ProviderError | None) -> ProviderError:
    previous = f" (before that: {last.message})" if last else ""
    return ProviderError(
        f"{endpoint.url} gave no answer within {timeout_s:g} s{previous}.",
        "Raise timeout_s of the provider if its answers take that long.",
        retryable=True,
    )


def queue_timeout(endpoint: EndpointRef, limit: int) -> ProviderError:
    return ProviderError(
        f"No call to {endpoint.url} could begin before the timeout: {limit} others are in flight.",
        "Allow more time, or fewer calls at once.",
        retryable=True,
    )


def gate_error(endpoint: EndpointRef, seconds: float) -> ProviderError:
    return ProviderError(
        f"{endpoint.url} accepts no call for another {seconds:.0f} s, longer than the time left.",
        "Try again later.",
        retryable=True,
        status=429,
        retry_after_s=seconds,
    )


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """The wait that the server requests, from `retry-after-ms` or `retry-after` (seconds or HTTP date)."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or not text:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except (ValueError, OverflowError):
        return None


def from_network(error: Exception, endpoint: EndpointRef) -> ProviderError:
    """No connection, or one that broke."""
    causes = list(_causes(error))
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return ProviderError(
            f"connection refused at {endpoint.url}: is the server running?",
            "Start it, or correct base_url (hermes doctor shows what answers).",
            retryable=True,
        )
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        host = urlsplit(endpoint.base_url).hostname
        return ProviderError(
            f"the host name {host} of {endpoint.url} cannot be resolved",
            "Check base_url for a typing error, and the network connection.",
            retryable=True,
        )
    import openai

    if isinstance(error, openai.APITimeoutError):
        return ProviderError(f"timed out connecting to {endpoint.url}", retryable=True)
    for cause in causes:
        if isinstance(cause, ssl.SSLError) and cause.reason in _TLS_MISFITS:
            return ProviderError(
                f"no secure connection to {endpoint.url}: {cause}", _TLS_MISFITS[cause.reason]
            )
    reason = str(causes[-1]) or type(causes[-1]).__name__
    return ProviderError(f"the connection to {endpoint.url} broke: {reason}", retryable=True)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and the chain of exceptions that caused it."""
    current: BaseException | None = error
    while current is not None:
        yield current
        if isinstance(current, BaseExceptionGroup):
            for inner in current.exceptions:
                yield from _causes(inner)
        current = current.__cause__ or current.__context__


def _key_hint(endpoint: EndpointRef) -> str:
    if endpoint.key_env is None:
        return "This endpoint requires a key: set key_env of the provider to the variable that holds it."
    return f"Check the key in {endpoint.key_env}, or set another: hermes config set {endpoint.key_env} …"


def _mentions(body: JSON, marks: Sequence[str]) -> bool:
    data = as_object(body)
    words = f"{_quote(body)} {data.get('code')} {data.get('type')}".lower()
    return any(mark in words for mark in marks)


def _quote(body: JSON, endpoint: EndpointRef | None = None) -> str:
    """The server's error message, on one line, without the endpoint's key."""
    data = as_object(body)
    message = as_text(data.get("message")) or as_text(data.get("detail")) or as_text(body)
    upstream = as_text(as_object(data.get("metadata")).get("raw"))
    text = " ".join(f"{message} {upstream}".split())
    if text.startswith("<"):
        return "a web page"
    if not text and data:
        text = str(data)
    text = endpoint.hide_key(text) if endpoint else text
    return text if len(text) <= _MAX_QUOTE_CHARS else text[:_MAX_QUOTE_CHARS] + "…"


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
