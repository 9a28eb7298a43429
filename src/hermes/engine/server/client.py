"""A running engine asked over plain HTTP, without the SDK: what the command line needs of it."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from hermes.engine.lora.adapter_tar import ADAPTER_FILES, Tar
from hermes.engine.server.security import KEY_PREFIX, TOKEN_VARIABLE
from hermes.errors import HermesError, UsageError

_ASK_S, _SEND_S = 10, 600


def ask(url: str, path: str, tar: Tar | None = None) -> Any:
    """The answer to a GET, or to a POST of the tar. The token comes from the environment."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"'{url}' is not an address", "write it like http://127.0.0.1:8001")
    headers = {"X-API-Key": f"{KEY_PREFIX}{os.environ.get(TOKEN_VARIABLE, '')}"}
    if tar is not None:
        headers |= {"Content-Type": "application/x-tar", "Content-Length": str(tar.size_bytes)}
    request = urllib.request.Request(f"{url.rstrip('/')}/{path}", tar, headers)
    try:
        with urllib.request.urlopen(request, timeout=_ASK_S if tar is None else _SEND_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise HermesError(f"the engine on {url} refused: {error.code} {_detail(error)}") from error
    except (OSError, ValueError) as error:
        raise HermesError(
            f"no engine answers on {url}: {error}", "start one with: hermes engine serve"
        ) from error


def import_adapter(url: str, folder: Path, name: str) -> dict[str, Any]:
    """Gives a running engine a PEFT adapter; what it made of it. UsageError: the folder holds none."""
    files: dict[str, Path | None] = {file: folder / file for file in ADAPTER_FILES}
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise UsageError(
            f"'{folder}' is not a PEFT adapter: it has no {missing[0]}",
            f"give a folder with {' and '.join(ADAPTER_FILES)}",
        )
    ask(url, "health")  # whoever is not let in hears so before the files are sent
    path = f"api/v1/import_adapter?{urllib.parse.urlencode({'name': name})}"
    made: dict[str, Any] = ask(url, path, Tar(files))
    return made


def _detail(error: urllib.error.HTTPError) -> str:
    text = error.read(4000).decode(errors="replace")
    try:
        return str(json.loads(text)["detail"])
    except (ValueError, KeyError, TypeError):
        return text
