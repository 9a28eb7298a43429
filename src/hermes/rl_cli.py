"""`rl_cli` and `python -m hermes.rl_cli`: an older name of `hermes rl`."""

from __future__ import annotations


def main() -> None:
    from hermes.cli.older import run

    run("rl")


if __name__ == "__main__":
    main()
