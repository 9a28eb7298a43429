"""The script batch_runner.py of hermes-agent: it runs `hermes batch`; --help lists the flags."""

from hermes.cli.older import batch_runner

if __name__ == "__main__":
    batch_runner()
