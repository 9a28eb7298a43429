"""Runs an environment file through the shim, as `hermes env` does:

python -m tests.compat.drive serve|process|evaluate FILE [flags]
"""

from __future__ import annotations

import sys

from hermes.compat import atropos
from hermes.envs.cli.run import run_file
from hermes.errors import HermesError


def main() -> None:
    atropos.install()
    mode, path, *flags = sys.argv[1:]
    try:
        run_file(path, mode, flags)
    except HermesError as error:
        print(f"error: {error.message}\n  fix: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
