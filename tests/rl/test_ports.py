"""Ports that commands choose for their servers, before these listen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.rl.supervise import ports
from tests.ports import free_port, listening

CHOOSE = """
import sys
from hermes.rl.supervise import ports
print(ports.choose(int(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def port() -> int:
    return free_port()


def test_a_port_that_another_process_has_chosen_is_not_chosen_again_until_it_ends(port: int) -> None:
    command = [sys.executable, "-c", CHOOSE, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and int(other.stdout.readline()) == port
        assert ports.is_free(port), "its server does not listen yet"
        assert ports.choose(port) != port
        other.kill()
    assert ports.choose(port) == port


def test_a_process_gets_its_own_port_again(port: int) -> None:
    assert ports.choose(port) == ports.choose(port) == port


def test_a_port_that_is_in_use_or_reserved_is_not_chosen(port: int) -> None:
    assert ports.choose(port, reserved=(port,)) != port
    with listening() as url:
        taken = int(url.rpartition(":")[2])
        assert ports.choose(taken) != taken


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_a_folder_of_claims_of_another_user_is_not_used(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its links would lead anywhere, and its locks would hold a search for a port up."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    claims = tmp_path / f"hermes-ports-{os.getuid()}"
    claims.mkdir()
    (claims / str(port)).symlink_to(tmp_path / "made")
    os.chown(claims, 59998, 59998)
    assert ports.choose(port) == port
    assert not (tmp_path / "made").exists()


def test_without_a_directory_for_the_claims_a_free_port_is_chosen(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    assert ports.choose(port) == port
