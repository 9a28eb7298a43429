"""Fixtures that tests of several packages share."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from hermes.models.local.bundled import prepare, read_manifest
from hermes.models.local.torch_threads import import_torch
from tests import disks

CONVERT = "import sys; from pathlib import Path; from hermes.models.local.bundled import prepare; "
CONVERT += "prepare(Path(sys.argv[1]), lambda line: print(line, flush=True))"


def pytest_configure() -> None:
    """Fixes the examples of property tests; undoes two things that child processes would inherit.

    `make test` must give one answer for one commit, so Hypothesis derives few examples from the test
    itself. `make nightly` sets HERMES_EXPLORE and draws many new ones; one that fails becomes an `@example`.
    """
    profiles = hypothesis.settings
    profiles.register_profile("repeatable", derandomize=True, database=None, max_examples=30, deadline=None)
    profiles.register_profile("explore", max_examples=200, deadline=None)
    profiles.load_profile("explore" if "HERMES_EXPLORE" in os.environ else "repeatable")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of them read what is compiled once
    sys.dont_write_bytecode = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell does for what runs in its background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test first: begun last, it would keep one core waiting for the other."""
    items.sort(key=lambda item: item.path.name != "test_readme.py")


@pytest.fixture(autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """A command that a test runs in this process installs handlers; the next test must not have them."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 1 MiB of room."""
    with disks.disk(tmp_path / "small", "1m") as place:
        yield place


@pytest.fixture(scope="session")
def bundled_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the bundled model in it; shared by the workers of one run.

    The first conversion is killed half-way, and what it left is noted in interrupted.json: the model
    that the other tests use is the one made by carrying on from there.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    home = root / "bundled-home"
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "interrupted.json").exists():
            _convert_and_kill(home)
    import_torch()
    import torch

    torch.set_num_threads(
        1
    )  # the workers of a run share the cores; threads of theirs would wait for each other
    prepare(home)
    return home


def _convert_and_kill(home: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CONVERT, str(home)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = []
    for line in child.stdout:
        lines.append(line.strip())
        if line.startswith("writing the tokenizer"):  # the weights are written, the rest is not
            child.send_signal(signal.SIGKILL)
    models = home / "models"
    state = {
        "exit": child.wait(),
        "lines": lines,
        "folder": (models / "hermes--smollm2").exists(),
        "manifest": read_manifest(models / "hermes--smollm2"),
        "parts": [path.name for path in models.glob(".*.part")],
    }
    (home / "interrupted.json").write_text(json.dumps(state))
