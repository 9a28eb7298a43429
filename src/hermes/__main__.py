"""`python -m hermes` is the `hermes` command."""

from hermes.cli.main import main

if __name__ == "__main__":
    main()
