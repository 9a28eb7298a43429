"""`rl_cli` and `python -m hermes.rl_cli`: the name older command lines use for `hermes rl`."""

from __future__ import annotations

import sys


def main() -> None:
    from hermes.cli.main import main as hermes

    sys.argv[1:1] = ["rl"]
    hermes()


if __name__ == "__main__":
    main()
