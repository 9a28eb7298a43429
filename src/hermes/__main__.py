"""`python -m hermes` is the `hermes` command.

Python would search the current directory for modules first. An agent writes files there, so it is left out.
"""

import sys
from pathlib import Path

if sys.path and sys.path[0] in ("", str(Path.cwd())) and not sys.flags.safe_path:
    del sys.path[0]

from hermes.cli.main import main

if __name__ == "__main__":
    main()
