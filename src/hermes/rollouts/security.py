"""The trajectory API's token: as `Authorization: Bearer TOKEN`, or as the password of a URL.

The latter (http://hermes:TOKEN@host:8000) so that clients that know nothing of tokens can have one.
"""

from __future__ import annotations

import base64
import binascii
import hmac

from hermes.safety.access import Headers, TokenScheme

TOKEN_VARIABLE = "HERMES_API_TOKEN"


def _carries(headers: Headers, token: str) -> bool:
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    given = value.strip()
    if scheme.lower() == b"basic":
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() != b"bearer":
        return False
    return hmac.compare_digest(given, token.encode())


TOKEN_SCHEME = TokenScheme(
    TOKEN_VARIABLE, "read and reset the run", "Authorization: Bearer, or http://hermes:TOKEN@host", _carries
)
