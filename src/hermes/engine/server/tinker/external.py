"""Weights for the outside: files that whoever has their address may fetch, and only a recipient can read.

The addresses of a checkpoint's files are signed with a secret of this process and hold for an hour; they need
no header, because downloaders send none. Encryption to age recipients happens file by file, before anything
lies at its place.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hermes.engine.types import EngineUserError

VALID_S = 3600
MOST_RECIPIENTS = 10


class Signer:
    def __init__(self) -> None:
        self._secret = os.urandom(32)

    def sign(self, what: str, expires_s: int) -> str:
        return hmac.new(self._secret, f"{expires_s} {what}".encode(), hashlib.sha256).hexdigest()

    def is_valid(self, what: str, expires: str, token: str, now_s: float) -> bool:
        if not expires.isdecimal() or int(expires) < now_s:
            return False
        return hmac.compare_digest(self.sign(what, int(expires)).encode(), token.encode())


def check_recipients(recipients: Sequence[str]) -> None:
    """EngineUserError: nothing can be encrypted to them here."""
    if len(recipients) > MOST_RECIPIENTS:
        raise EngineUserError(f"{len(recipients)} age recipients are more than {MOST_RECIPIENTS}")
    for recipient in recipients:
        _recipient(recipient)


def encrypt_files(folder: Path, recipients: Sequence[str]) -> None:
    """Every file of the folder becomes `<name>.age`, readable by the recipients only."""
    keys = [_recipient(recipient) for recipient in recipients]
    for file in sorted(folder.iterdir()):
        _pyrage().encrypt_file(str(file), f"{file}.age", keys)
        file.unlink()


def _recipient(text: str) -> Any:
    pyrage = _pyrage()
    kind = pyrage.x25519.Recipient if text.startswith("age1") else pyrage.ssh.Recipient
    try:
        return kind.from_str(text)
    except pyrage.RecipientError as error:
        raise EngineUserError(f"'{text[:80]}' is not an age recipient: {error}") from error


def _pyrage() -> Any:
    try:
        return importlib.import_module("pyrage")
    except ModuleNotFoundError as error:
        raise EngineUserError(
            "encrypting weights to age recipients needs the package 'pyrage', which the engine does not have",
            "pip install pyrage, or save without age_encryption_recipients",
        ) from error
