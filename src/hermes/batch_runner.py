"""`batch_runner` and `python -m hermes.batch_runner`: an older name of `hermes batch`."""

from __future__ import annotations


def main() -> None:
    from hermes.cli.older import run

    run("batch")


if __name__ == "__main__":
    main()
