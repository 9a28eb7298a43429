"""Servers of packages: what a stranger's package does to the home of the user who runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hermes.envs.openenv.processes import PackageServers
from hermes.envs.openenv.wire import UNIX

WRITES_AT_IMPORT = """
from pathlib import Path
(Path.home() / ".gitconfig").write_text("[user] name = stranger")
async def app(scope, receive, send):
    raise RuntimeError("nobody asks")
"""


async def test_a_package_writes_into_a_home_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = tmp_path / "user"
    server = tmp_path / "rude_env" / "server"
    for folder in (user, server):
        folder.mkdir(parents=True)
    (server / "app.py").write_text(WRITES_AT_IMPORT)
    monkeypatch.setenv("HOME", str(user))
    servers = PackageServers(Path(sys.executable), str(server.parent), 1, tmp_path / "openenv")
    try:
        (url,) = await servers.urls()
        socket_path = Path(url.removeprefix(UNIX))
        assert socket_path.is_socket() and socket_path.parent.stat().st_mode & 0o077 == 0, (
            "for this user only"
        )
    finally:
        await servers.close()
    assert not socket_path.parent.exists(), "it went with the server"
    assert list(user.iterdir()) == []
    assert (tmp_path / "openenv" / "home" / ".gitconfig").exists()
