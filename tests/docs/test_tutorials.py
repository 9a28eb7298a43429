"""The stranger's path: the tutorials followed by copy and paste, to the printed results.

The stranger has a fresh home, without a model, and a new virtual environment with the wheel of this checkout.
Every command of a tutorial is executed as it stands, except those of NOT_EXECUTED, each with its reason. What
the page prints beneath a block of commands must have the shape of what one of them printed. The tutorials
share one home and one folder, in the order in which the contents list them.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.docs.installed import InstalledHermes, install, tracked_files
from tests.docs.pages import ROOT, blocks
from tests.docs.scripts import load_script
from tests.fakes.provider import FakeProvider, Reply, text

TUTORIALS = ROOT / "docs/tutorials"
FOLLOWED = ("first-dataset", "first-environment", "first-rl-run", "first-rating-round", "claude-code-week")
BEHIND_AN_API = "improve-texts"
NOT_FOLLOWED = {"laptop-to-gpu": "needs a GPU and a second machine"}
NOT_EXECUTED = {
    "hermes rate queue": "a person presses keys; tests/ratings/test_cli.py does it at a terminal",
    "hermes improve": "needs 16 ratings of a person, and hours on two cores; tests/policies/test_improve.py",
    "hermes policy": "comes after hermes improve",
    "hermes --model policy": "comes after hermes improve",
}
SESSIONS = ROOT / "tests/data/sessions/fixtures/claude-code"
"""What the real client wrote in headless runs."""
ENGINE = "http://127.0.0.1:8001"
shape = load_script("outputs").shape


@dataclass
class Stranger:
    """A person at a terminal with a fresh home."""

    folder: Path
    environ: dict[str, str]
    not_executed: Collection[str] = tuple(NOT_EXECUTED)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    run_id: str | None = None
    """Of the RL run that was started last; the pages call it RUN."""

    def follow(self, page: Path) -> int:
        """Executes the page's commands; the number of blocks of output that were compared."""
        printed: list[str] = []
        compared = 0
        for block in blocks(page):
            if block.language == "sh":
                printed = [self._type(line) for line in block.text.replace("\\\n", " ").splitlines() if line]
            elif block.language == "text":
                assert any(_matches(block.text, output) for output in printed), (block.text, printed)
                compared += 1
        return compared

    def _type(self, line: str) -> str:
        if any(line.startswith(start) for start in self.not_executed):
            return ""
        if line.startswith("hermes engine serve"):
            return self._serve(line)
        if "RUN" in line.split():
            assert self.run_id, f"no run was started before: {line}"
            line = line.replace("RUN", self.run_id)
        if line.startswith(("hermes rl status", "hermes rl results")):
            self._wait_for_run()
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=self.environ, capture_output=True, text=True
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        if started := re.search(r"run (\S+) is starting", done.stdout):
            self.run_id = started[1]
        return done.stdout

    def _serve(self, line: str) -> str:
        """Starts a server as in a second terminal, and waits until it answers."""
        server = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.servers.append(server)
        while not _answers(f"{ENGINE}/health"):
            assert server.poll() is None, f"{line}: ended with {server.returncode}"
            time.sleep(1)
        return ""

    def _wait_for_run(self) -> None:
        command = ["hermes", "rl", "status", str(self.run_id), "--json"]
        while True:
            done = subprocess.run(
                command, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=True
            )
            status = json.loads(done.stdout)
            if status["status"] not in ("starting", "running", "stopping"):
                assert status["status"] == "completed", done.stdout
                return
            time.sleep(2)

    def leave(self) -> None:
        for server in self.servers:
            server.terminate()
            server.wait()
        self.servers.clear()


def _answers(url: str) -> bool:
    with suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=5) as response:
        return bool(response.status == 200)
    return False


def _matches(expected: str, output: str) -> bool:
    """Whether the lines of the page are, in their order, lines of the output; durations do not count."""
    lines = iter([re.sub(r"N s, ", "", line) for line in shape(output)])
    wanted = [re.sub(r"N s, ", "", line) for line in shape(expected) if line]
    return all(line in lines for line in wanted)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> InstalledHermes:
    return install(tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory, installed: InstalledHermes) -> Iterator[Stranger]:
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "work").mkdir()
    shutil.copytree(SESSIONS, folder / ".claude/projects/-home-you-project")
    environ = {
        "HOME": str(folder),
        "USER": "you",
        "LOGNAME": "you",
        "PATH": f"{installed.programs}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "COLUMNS": "100",
    }
    person = Stranger(folder / "work", environ)
    yield person
    person.leave()
    if person.run_id:
        subprocess.run(["hermes", "rl", "stop", person.run_id, "--now"], env=environ, capture_output=True)


def test_every_tutorial_is_followed_or_has_a_reason() -> None:
    assert {page.stem for page in TUTORIALS.glob("*.md")} == {*FOLLOWED, *NOT_FOLLOWED, BEHIND_AN_API}


def test_what_is_not_executed_is_in_a_tutorial() -> None:
    lines = [
        line
        for name in FOLLOWED
        for block in blocks(TUTORIALS / f"{name}.md")
        if block.language == "sh"
        for line in block.text.splitlines()
    ]
    assert [start for start in NOT_EXECUTED if not any(line.startswith(start) for line in lines)] == []
    executed = [line for line in lines if line and not line.startswith(tuple(NOT_EXECUTED))]
    assert len(executed) > 15


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package(installed: InstalledHermes, stranger: Stranger) -> None:
    missing = [path for path in tracked_files() if not (installed.package / path).exists()]
    assert missing == []
    where = subprocess.run(
        [installed.programs / "python", "-c", "import hermes; print(hermes.__file__)"],
        cwd=stranger.folder,
        env=stranger.environ,
        capture_output=True,
        text=True,
    )
    assert where.stdout.strip() == str(installed.package / "__init__.py")


@pytest.mark.slow
@pytest.mark.timeout(5_400)
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_stranger_follows_the_tutorial(stranger: Stranger, name: str) -> None:
    if _answers(f"{ENGINE}/health") and name == "first-environment":
        pytest.skip("another engine has the port of the tutorial")
    try:
        assert stranger.follow(TUTORIALS / f"{name}.md") > 0
    finally:
        stranger.leave()


def test_the_tutorial_behind_an_api_is_followed_against_a_provider(tmp_path: Path) -> None:
    """Every command of it, against models on loopback that behave as the page says."""
    drawn = random.Random(3)

    def reply(request: dict[str, Any]) -> Reply:
        messages = request["messages"]
        if request["model"] == "gpt-4.1":
            proposals = ("State the total with two decimals after EUR.", "Be brief.", "Be polite.")
            return text(f"```\n{drawn.choice(proposals)}\n```")
        total = re.search(r": (\d+) euros", messages[-1]["content"])
        assert total is not None
        knows = "two decimals after EUR" in messages[0]["content"]
        return text(f"EUR {total[1]}.00" if knows else f"The total is {total[1]} euros.")

    with FakeProvider(reply) as provider:
        environ = {
            "HOME": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "HERMES_HOME": str(tmp_path / "home"),
            "OPENAI_BASE_URL": provider.base_url,
            "OPENAI_API_KEY": "sk-on-loopback-only",
        }
        person = Stranger(tmp_path, environ, not_executed=())
        assert person.follow(TUTORIALS / f"{BEHIND_AN_API}.md") == 2


def test_output_that_differs_from_the_page_is_noticed() -> None:
    assert _matches("3 rows written\n", "a\n12 rows written\nb\n")
    assert not _matches("3 rows written\n", "a\n12 lines written\n")
    assert not _matches("b\na\n", "a\nb\n")
