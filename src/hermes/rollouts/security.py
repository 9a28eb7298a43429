"""The trajectory API's token: `Authorization: Bearer TOKEN`, or the password of a URL.

A URL (http://hermes:TOKEN@host:8000) works with clients that have no setting for a token.
"""

from __future__ import annotations

import base64
import binascii
import hmac

from hermes.safety.access import Headers, TokenScheme
from hermes.serving.trajectory_api import TOKEN_VARIABLE


def _has_token(headers: Headers, token: str) -> bool:
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    credential = value.strip()
    if scheme.lower() == b"basic":
        try:
            credential = base64.b64decode(credential, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() != b"bearer":
        return False
    return hmac.compare_digest(credential, token.encode())


TOKEN_SCHEME = TokenScheme(
    TOKEN_VARIABLE, "read and reset the run", "Authorization: Bearer, or http://hermes:TOKEN@host", _has_token
)
