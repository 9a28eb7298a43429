"""Errors and waits in the author's code are named with file and line."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from hermes.envs.author_code import GraderWatch, error_location
from hermes.envs.failures import classify
from tests.waiting import wait_until

SOURCE = """
import asyncio, json

def broken(text):
    return json.loads(text)["answer"]  # line 5

def waits(event):
    while not event.is_set():
        event.wait(0.01)  # line 9

async def sleeps(event):
    while not event.is_set():
        await asyncio.sleep(0.01)  # line 13

async def blocks(event):
    waits(event)  # line 16
"""


@pytest.fixture
def module(tmp_path: Path) -> Any:
    path = tmp_path / "my_env.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("my_env", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("text", ["not JSON", "{}"])
def test_an_error_has_the_authors_line_even_if_a_library_raised_it(module: Any, text: str) -> None:
    with pytest.raises((ValueError, KeyError)) as caught:
        module.broken(text)
    assert error_location(caught.value) == "my_env.py:5"
    assert classify(caught.value).text.endswith("(my_env.py:5)")


@pytest.mark.parametrize(("name", "lines"), [("waits", (8, 9)), ("sleeps", (12, 13)), ("blocks", (8, 9, 16))])
def test_a_grader_that_hangs_is_named_with_its_line(
    module: Any, caplog: pytest.LogCaptureFixture, name: str, lines: tuple[int, ...]
) -> None:
    watch, event, grader = GraderWatch(0.05, 0.01), threading.Event(), getattr(module, name)

    def grade() -> None:
        work = grader(event) if name != "waits" else None
        with watch.watch(grader, work):
            if work is None:
                grader(event)
            else:
                asyncio.run(work)

    with caplog.at_level(logging.WARNING, "hermes.envs.author_code"):
        thread = threading.Thread(target=grade)
        thread.start()
        wait_until(lambda: caplog.messages)
        event.set()
        thread.join()
    message = caplog.messages[0]
    assert message.startswith("grading has taken 0 s in my_env.py:")
    assert int(message.rpartition(":")[2]) in lines
