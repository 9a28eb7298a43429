"""A client of a running engine for the command line: plain HTTP, without the SDK."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
from pathlib import Path
from typing import Any

from hermes.engine.lora.adapter_tar import ADAPTER_FILES, Tar
from hermes.engine.server.security import KEY_PREFIX, TOKEN_VARIABLE
from hermes.errors import HermesError, UsageError
from hermes.serving.fetch import fetch

_GET_TIMEOUT_S, _UPLOAD_TIMEOUT_S = 10, 600


def request_json(url: str, path: str, tar: Tar | None = None) -> Any:
    """The JSON response to a GET, or to a POST of the tar. The token is read from the environment."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"'{url}' is not a URL", "write it like http://127.0.0.1:8001")
    headers = {"X-API-Key": f"{KEY_PREFIX}{os.environ.get(TOKEN_VARIABLE, '')}"}
    timeout_s = _GET_TIMEOUT_S
    if tar is not None:
        headers |= {"Content-Type": "application/x-tar", "Content-Length": str(tar.size_bytes)}
        timeout_s = _UPLOAD_TIMEOUT_S
    try:
        return json.loads(fetch(f"{url.rstrip('/')}/{path}", tar, headers=headers, timeout_s=timeout_s))
    except urllib.error.HTTPError as error:
        raise HermesError(f"the engine at {url} returned {error.code}: {_detail(error)}") from error
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)  # urllib wraps the error that says why
        raise HermesError(
            f"no engine answers at {url}: {cause}", "start it with: hermes engine serve"
        ) from error


def import_adapter(url: str, folder: Path, name: str) -> dict[str, Any]:
    """Uploads a PEFT adapter to a running engine; returns the response of the import endpoint.

    UsageError: the folder has no adapter.
    """
    files: dict[str, Path | None] = {file: folder / file for file in ADAPTER_FILES}
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise UsageError(
            f"'{folder}' is not a PEFT adapter: it has no {missing[0]}",
            f"use a folder with {' and '.join(ADAPTER_FILES)}",
        )
    request_json(url, "health")  # a wrong address or token fails before the upload
    path = f"api/v1/import_adapter?{urllib.parse.urlencode({'name': name})}"
    imported: dict[str, Any] = request_json(url, path, Tar(files))
    return imported


def _detail(error: urllib.error.HTTPError) -> str:
    text = error.read(4000).decode(errors="replace")
    try:
        return str(json.loads(text)["detail"])
    except (ValueError, KeyError, TypeError):
        return text
