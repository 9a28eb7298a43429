"""`python -m hermes.compat their_env.py serve …`: runs a file of another project with the shim installed.

The file runs as with `python their_env.py serve …`: as `__main__`, with its folder first on the path and its
own arguments.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from hermes.compat import atropos


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python -m hermes.compat FILE.py [ARGUMENTS]")
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).absolute().parent)
    atropos.install()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
