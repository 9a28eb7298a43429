"""`trajectory_compressor`, `python -m hermes.trajectory_compressor`: an older name of `hermes compress`."""

from __future__ import annotations


def main() -> None:
    from hermes.cli.older import run

    run("compress")


if __name__ == "__main__":
    main()
