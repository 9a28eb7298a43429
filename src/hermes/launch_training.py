"""`launch_training` and `python -m hermes.launch_training`: the older name of the trainer.

It is `hermes train grpo --with-engine`: trainer and inference server in one command.
"""

from __future__ import annotations


def main() -> None:
    from hermes.cli.older import run

    run("train", "grpo", "--with-engine")


if __name__ == "__main__":
    main()
