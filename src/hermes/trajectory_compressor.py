"""`trajectory_compressor` and `python -m hermes.trajectory_compressor`: the older name of `hermes compress`.

Older command lines give switches a value (`--dry_run=True`); they are understood here.
"""

from __future__ import annotations

import re
import sys

_SWITCH = re.compile(r"--(dry[_-]run|resume|json|strict[_-]protect)=(true|false|1|0|yes|no)", re.IGNORECASE)


def main() -> None:
    from hermes.cli.main import main as hermes

    sys.argv[1:] = ["compress", *modern(sys.argv[1:])]
    hermes()


def modern(arguments: list[str]) -> list[str]:
    """The arguments with switches written as switches."""
    kept: list[str] = []
    for argument in arguments:
        switch = _SWITCH.fullmatch(argument)
        if switch is None:
            kept.append(argument)
        elif switch[2].lower() in ("true", "1", "yes"):
            kept.append(f"--{switch[1]}")
    return kept


if __name__ == "__main__":
    main()
