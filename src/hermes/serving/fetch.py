"""Single requests to a server: probes, counters, uploads and downloads. The standard library sends them.

A client that sends many requests keeps a pool of connections instead: that of models (`models.remote`), and
those of the trajectory API (`serving.trajectory_api`).
"""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from hermes.core.json import JSONObject

_PROBE_S = 2.0
_CHUNK_BYTES = 1 << 20


def fetch(
    url: str, body: Any = None, *, headers: Mapping[str, str] | None = None, timeout_s: float = _PROBE_S
) -> bytes:
    """The body of the response to a GET, or to a POST of `body`: an object as JSON, or an iterable of bytes.

    OSError: there is no response; urllib.error.HTTPError, which is one, has an error status.
    """
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    sent = {"Content-Type": "application/json"} if isinstance(body, dict) else {}
    request = urllib.request.Request(url, data, {**sent, **(headers or {})})
    with closing(urllib.request.urlopen(request, timeout=timeout_s)) as response:
        return cast(bytes, response.read())


def fetch_json(url: str, token: str | None = None) -> JSONObject | None:
    """The JSON object that a server returns; None if it does not respond."""
    try:
        content: JSONObject = json.loads(
            fetch(url, headers={"Authorization": f"Bearer {token}"} if token else None) or b"{}"
        )
    except (OSError, ValueError):
        return None
    return content


def fetch_file(url: str, target: Path, timeout_s: float) -> None:
    """Writes the body of the response to a file. OSError: it cannot be fetched or written."""
    with closing(urllib.request.urlopen(url, timeout=timeout_s)) as response, target.open("wb") as file:
        shutil.copyfileobj(response, file, _CHUNK_BYTES)
