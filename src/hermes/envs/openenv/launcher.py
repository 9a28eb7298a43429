"""Serves the application of an OpenEnv package. This file is executed by an interpreter that has no Hermes.

It listens on a Unix socket in a folder of the user's alone, prints a line when the package is imported, and
ends when its input does: with the process that started it.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from pathlib import Path
from typing import Any


def application(package: str) -> Any:
    """The `app` of NAME.server.app, for an installed package or its folder; MODULE:NAME names another one."""
    name, _, attribute = package.partition(":")
    folder = Path(name)
    if folder.is_dir():
        # Environments import their files as a package of the folder's name, or from the folder.
        sys.path[:0] = [str(folder.resolve().parent), str(folder.resolve())]
        name = folder.resolve().name
    if attribute and not folder.is_dir():
        return getattr(importlib.import_module(name), attribute)
    return importlib.import_module(f"{name}.server.app").app


def end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    import uvicorn

    package, socket_path = sys.argv[1:]
    app = application(package)
    sys.__stdout__.write("imported\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]
    threading.Thread(target=end_with_input, daemon=True).start()
    config = uvicorn.Config(
        app, uds=socket_path, log_level="warning", ws_ping_interval=None, ws_max_size=100 << 20
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder, whose names are not the package's
    sys.stdout = sys.stderr  # what the package prints is no sign
    main()
