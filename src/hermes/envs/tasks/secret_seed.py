"""The seed of training tasks that a policy cannot draw again, although it may know their generator.

Without a run's seed it is random. With one it is a function of that seed and of a secret of this home: two
runs with the same seed train on the same tasks, and the seed alone does not tell which.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from pathlib import Path

from hermes.disk.filelock import FileLock
from hermes.disk.files import atomic_write, ensure_dir, read_text

_BITS = 48
_SECRET_FILE = "task_secret"
"""In the folder `rl` of the home, readable by its user only."""


def secret_seed(home: Path, run_seed: int | None) -> int:
    """`run_seed` None: random."""
    if run_seed is None:
        return secrets.randbits(_BITS)
    digest = blake2b(str(run_seed).encode(), key=bytes.fromhex(_home_secret(home)), digest_size=_BITS // 8)
    return int.from_bytes(digest.digest(), "big")


def _home_secret(home: Path) -> str:
    """Hexadecimal; drawn when it is first needed."""
    path = ensure_dir(home / "rl") / _SECRET_FILE
    with FileLock(path.with_suffix(".lock")):
        secret = read_text(path)
        if secret is None:
            secret = secrets.token_hex(32)
            atomic_write(path, secret)
    return secret.strip()
