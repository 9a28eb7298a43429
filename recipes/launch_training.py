"""The script launch_training.py of hermes-agent: it runs `hermes train grpo --with-engine`; see --help."""

from hermes.cli.older import launch_training

if __name__ == "__main__":
    launch_training()
