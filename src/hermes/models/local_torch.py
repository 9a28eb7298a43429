"""Importing torch so that its threads sleep while they wait.

By default OpenMP's threads spin at every barrier, and one token has hundreds. That is a little faster on
an idle machine and ruinous on a busy one. The bundled model, two cores, tokens a second: idle, 25 spinning
and 19 sleeping; beside four or five busy processes, 1 to 4 spinning and 6 to 16 sleeping.
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
