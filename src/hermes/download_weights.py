"""`python -m hermes.download_weights [RUN|tinker://…]`: the older name of `hermes rl weights`.

Weights are written to ./checkpoints/<hash>/, where <hash> names the run at the engine or service.
"""

from __future__ import annotations


def main() -> None:
    from hermes.cli.older import run

    run("rl", "weights", "--into", "checkpoints")


if __name__ == "__main__":
    main()
