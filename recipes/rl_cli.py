"""The script rl_cli.py of hermes-agent: it runs `hermes rl`; --help lists the flags."""

from hermes.cli.older import rl_cli

if __name__ == "__main__":
    rl_cli()
