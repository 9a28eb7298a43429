"""The reference's script rl_cli.py: it runs `hermes rl`; --help lists the flags."""

from hermes.rl_cli import main

if __name__ == "__main__":
    main()
