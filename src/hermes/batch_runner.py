"""`batch_runner` and `python -m hermes.batch_runner`: the name older command lines use for `hermes batch`."""

from __future__ import annotations

import sys


def main() -> None:
    from hermes.cli.main import main as hermes

    sys.argv[1:1] = ["batch"]
    hermes()


if __name__ == "__main__":
    main()
