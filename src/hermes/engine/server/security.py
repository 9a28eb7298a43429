"""The engine's token: `X-API-Key: tml-TOKEN`, as the public SDK sends it, or `Authorization: Bearer TOKEN`.

On loopback without a token every key is accepted, because the SDK always sends one.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from hermes.safety.access import Headers, TokenScheme

TOKEN_VARIABLE = "HERMES_ENGINE_TOKEN"
KEY_PREFIX = "tml-"


def _carries(headers: Headers, token: str) -> bool:
    scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
    key = bearer.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
    return hmac.compare_digest(key.removeprefix(KEY_PREFIX.encode()), token.removeprefix(KEY_PREFIX).encode())


TOKEN_SCHEME = TokenScheme(
    TOKEN_VARIABLE,
    "use and delete the adapters",
    f"X-API-Key: {KEY_PREFIX}TOKEN or Authorization: Bearer",
    _carries,
)


URL_VALID_S = 3600
_MAX_DIGITS = 15


class Signer:
    """Signs the URLs of a checkpoint's files, which need no header, with a secret of this process."""

    def __init__(self) -> None:
        self._secret = os.urandom(32)

    def sign(self, path: str, expires_s: int) -> str:
        return hmac.new(self._secret, f"{expires_s} {path}".encode(), hashlib.sha256).hexdigest()

    def is_valid(self, path: str, expires: str, token: str, now_s: float) -> bool:
        if not expires.isdecimal() or len(expires) > _MAX_DIGITS or int(expires) < now_s:
            return False
        return hmac.compare_digest(self.sign(path, int(expires)).encode(), token.encode())
