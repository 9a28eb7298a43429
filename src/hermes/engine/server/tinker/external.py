"""External weights: signed download URLs, and encryption to age recipients.

The URLs of a checkpoint's files are signed with a secret of this process and valid for an hour; they need no
header, because downloaders send none. Files are encrypted one by one before the checkpoint is committed.
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
MAX_RECIPIENTS = 10
_MAX_DIGITS = 15


class Signer:
    def __init__(self) -> None:
        self._secret = os.urandom(32)

    def sign(self, path: str, expires_s: int) -> str:
        return hmac.new(self._secret, f"{expires_s} {path}".encode(), hashlib.sha256).hexdigest()

    def is_valid(self, path: str, expires: str, token: str, now_s: float) -> bool:
        if not expires.isdecimal() or len(expires) > _MAX_DIGITS or int(expires) < now_s:
            return False
        return hmac.compare_digest(self.sign(path, int(expires)).encode(), token.encode())


def check_recipients(recipients: Sequence[str]) -> None:
    """EngineUserError: they are too many, one is not valid, or encryption is not installed."""
    if len(recipients) > MAX_RECIPIENTS:
        raise EngineUserError(f"at most {MAX_RECIPIENTS} age recipients are supported, not {len(recipients)}")
    for recipient in recipients:
        _parse_recipient(recipient)


def encrypt_files(folder: Path, recipients: Sequence[str]) -> None:
    """Replaces every file of the folder by `<name>.age`, which only the recipients can decrypt."""
    keys = [_parse_recipient(recipient) for recipient in recipients]
    for file in sorted(folder.iterdir()):
        _import_pyrage().encrypt_file(str(file), f"{file}.age", keys)
        file.unlink()


def _parse_recipient(text: str) -> Any:
    pyrage = _import_pyrage()
    kind = pyrage.x25519.Recipient if text.startswith("age1") else pyrage.ssh.Recipient
    try:
        return kind.from_str(text)
    except pyrage.RecipientError as error:
        raise EngineUserError(f"'{text[:80]}' is not an age recipient: {error}") from error


def _import_pyrage() -> Any:
    try:
        return importlib.import_module("pyrage")
    except ModuleNotFoundError as error:
        raise EngineUserError(
            "encrypting weights to age recipients needs the package 'pyrage', which is not installed",
            "pip install pyrage, or save without age_encryption_recipients",
        ) from error
