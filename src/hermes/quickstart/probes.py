"""Questions to the quickstart's servers: is one there, and what has the engine counted?"""

from __future__ import annotations

import json
import urllib.request
from urllib.error import URLError

from hermes.core import JSONObject
from hermes.errors import HermesError
from hermes.quickstart.outcome import Tokens

_READY_S = 2.0
_COUNTS_S = 30.0
_PREFIX = "hermes_engine_"


def ask(url: str) -> JSONObject | None:
    """What a server answers; None while it does not."""
    try:
        with urllib.request.urlopen(url, timeout=_READY_S) as answer:
            body: JSONObject = json.loads(answer.read() or b"{}")
            return body
    except (URLError, OSError, ValueError):
        return None


def tokens(engine_url: str) -> Tokens:
    """What the engine has sampled and trained since it was started."""
    try:
        with urllib.request.urlopen(f"{engine_url}/metrics", timeout=_COUNTS_S) as answer:
            values = read_counts(answer.read().decode())
    except OSError as error:
        raise HermesError(f"the engine at {engine_url} does not answer: {error}", "see its log") from error
    return Tokens(int(values["sampled_tokens_total"]), int(values["trained_tokens_total"]))


def read_counts(page: str) -> dict[str, float]:
    """A metrics page as name, without the prefix, → value."""
    rows = [line.split() for line in page.splitlines() if line.startswith(_PREFIX)]
    return {name.removeprefix(_PREFIX): float(value) for name, value in rows}
