"""The engine's token: `X-API-Key: tml-TOKEN`, as the public SDK sends it, or `Authorization: Bearer TOKEN`.

On loopback without a token every key is accepted, because the SDK always sends one.
"""

from __future__ import annotations

import hmac

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
