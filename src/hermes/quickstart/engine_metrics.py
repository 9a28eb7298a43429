"""The token counters of the quickstart's engine."""

from __future__ import annotations

import urllib.request

from hermes.errors import HermesError
from hermes.quickstart.outcome import EngineTokens

_COUNTS_S = 30.0
_PREFIX = "hermes_engine_"


def engine_tokens(engine_url: str) -> EngineTokens:
    """Tokens that the engine has sampled and trained on since it was started."""
    try:
        with urllib.request.urlopen(f"{engine_url}/metrics", timeout=_COUNTS_S) as response:
            values = read_counts(response.read().decode())
    except OSError as error:
        raise HermesError(f"the engine at {engine_url} does not respond: {error}", "see its log") from error
    return EngineTokens(int(values["sampled_tokens_total"]), int(values["trained_tokens_total"]))


def read_counts(page: str) -> dict[str, float]:
    """A Prometheus page as name (without the prefix) → value."""
    rows = [line.split() for line in page.splitlines() if line.startswith(_PREFIX)]
    return {name.removeprefix(_PREFIX): float(value) for name, value in rows}
