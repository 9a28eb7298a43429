"""Where calls go: the providers behind the gateway, and the headers that they get.

A response is read as it arrives and passed on byte for byte. No cookies, no redirects, no retries:
those are the client's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from hermes.core.texts import Texts
from hermes.gateway.http_client import RawHeaders
from hermes.gateway.wire import Protocol

_KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"))
_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host", b"content-length", b"expect"),
    )
)
_DECODED = (b"gzip", b"deflate", b"identity")
"""Codings of a response that the record can read."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One provider."""

    name: str
    """In the names of models: provider/model."""
    base_url: str
    """Without a slash at its end; mostly ends in /v1."""
    protocols: frozenset[Protocol]
    """The protocols it speaks; requests in others are translated to chat completions."""
    key: str | None = field(default=None, repr=False)
    """Sent in place of the client's own; None: the client's own is passed on."""
    model: str | None = None
    """Asked in place of the one that the client names."""
    texts: Texts = field(default_factory=dict)
    """Put around each request (`wire/texts.py`); only with `model`."""

    @property
    def root(self) -> str:
        return self.base_url.removesuffix("/v1")


ANTHROPIC = Upstream("anthropic", "https://api.anthropic.com/v1", frozenset({Protocol.MESSAGES}))
OPENAI = Upstream("openai", "https://api.openai.com/v1", frozenset({Protocol.CHAT, Protocol.RESPONSES}))
CHATGPT = Upstream("openai", "https://chatgpt.com/backend-api/codex", frozenset({Protocol.RESPONSES}))
_SPOKEN = {
    "api.anthropic.com": ANTHROPIC.protocols,
    "api.openai.com": OPENAI.protocols,
    "chatgpt.com": CHATGPT.protocols,
    "openrouter.ai": frozenset(Protocol),
}


def spoken_at(base_url: str) -> frozenset[Protocol]:
    """The protocols of the provider at an address, judged by its name; else chat completions."""
    return _SPOKEN.get(urlsplit(base_url).hostname or "", frozenset({Protocol.CHAT}))


@dataclass(frozen=True, slots=True)
class Accounts:
    """The providers of the client's own accounts."""

    anthropic: Upstream = ANTHROPIC
    openai: Upstream = OPENAI

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Accounts:
        """As the variables say that clients would be pointed at."""
        anthropic = environ.get("ANTHROPIC_BASE_URL", "").rstrip("/").removesuffix("/v1")
        openai = (environ.get("OPENAI_BASE_URL") or environ.get("OPENAI_API_BASE") or "").rstrip("/")
        return cls(
            replace(ANTHROPIC, base_url=f"{anthropic}/v1") if anthropic else ANTHROPIC,
            replace(OPENAI, base_url=openai) if openai else OPENAI,
        )

    def choose(self, protocol: Protocol | None, headers: Mapping[str, str]) -> Upstream:
        if "chatgpt-account-id" in headers:
            return CHATGPT
        anthropic = protocol is Protocol.MESSAGES or (protocol is None and "anthropic-version" in headers)
        return self.anthropic if anthropic else self.openai


def request_headers(raw: Iterable[tuple[bytes, bytes]], upstream: Upstream) -> RawHeaders:
    """The client's headers as the provider gets them: all but those that are about this one connection."""
    headers = end_to_end(raw)
    if upstream.key is not None:
        headers = [(name, value) for name, value in headers if name.lower() not in _KEY_HEADERS]
        if upstream.base_url.startswith(ANTHROPIC.root):
            headers.append((b"x-api-key", upstream.key.encode()))
        else:
            headers.append((b"authorization", b"Bearer " + upstream.key.encode()))
    return [
        (name, _readable_codings(value) if name.lower() == b"accept-encoding" else value)
        for name, value in headers
    ]


def end_to_end(raw: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    headers = list(raw)
    dropped = set(_HOP_BY_HOP)
    for name, value in headers:
        if name.lower() == b"connection":
            dropped.update(word.strip().lower() for word in value.split(b","))
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def _readable_codings(value: bytes) -> bytes:
    codings = [part.strip() for part in value.split(b",")]
    return b", ".join(part for part in codings if part.partition(b";")[0] in _DECODED) or b"identity"
