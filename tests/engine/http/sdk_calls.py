"""A pytest plugin that counts which methods of the public SDK the tests themselves call, and that return.

    SDK_CALLS=FILE pytest -p tests.engine.http.sdk_calls …

What the SDK calls of its own does not count, nor does a call that raises at once.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinker

CLIENTS = (tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient, tinker.RestClient)
VARIABLE = "SDK_CALLS"
_TESTS = str(Path(__file__).parents[2])
_called: Counter[str] = Counter()


def methods() -> dict[str, tuple[type, Callable[..., Any]]]:
    """All that the SDK's clients offer, by Class.method."""
    return {
        f"{client.__name__}.{name}": (client, method)
        for client in CLIENTS
        for name, method in inspect.getmembers(client, inspect.isfunction)
        if not name.startswith("_")
    }


def _counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        by_a_test = sys._getframe(1).f_code.co_filename.startswith(_TESTS)
        given = method(*arguments, **named)
        _called[name] += by_a_test
        return given

    return call


def pytest_configure() -> None:
    for name, (client, method) in methods().items():
        plain = name.partition(".")[2]
        is_static = isinstance(inspect.getattr_static(client, plain), staticmethod)
        counted = _counted(name, method)
        setattr(client, plain, staticmethod(counted) if is_static else counted)


def pytest_sessionfinish(session: pytest.Session) -> None:
    Path(os.environ[VARIABLE]).write_text(json.dumps(+_called))
