"""Importing torch so that its threads sleep while they wait.

By default OpenMP's threads spin at every barrier, of which one token has hundreds. On a machine that is busy
with anything else that is ruinous: one answer took 61 s spinning and 9 s sleeping on two cores shared by
eight processes. On an idle machine it makes no difference that can be measured.
"""

from __future__ import annotations

import os

_VARIABLE = "OMP_WAIT_POLICY"


def import_torch() -> None:
    """To be called before the first `import torch`; the user's own setting of the variable is respected.

    OpenMP reads the variable when it is loaded, so it is taken back at once: child processes do not get it.
    """
    if _VARIABLE in os.environ:
        return
    os.environ[_VARIABLE] = "PASSIVE"
    try:
        import torch  # noqa: F401
    finally:
        del os.environ[_VARIABLE]
