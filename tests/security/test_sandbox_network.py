"""`sandbox.network` is a network of its own: nothing of this machine, nothing of its private networks."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import random
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes.config.settings import SandboxSettings
from hermes.errors import ConfigError, SandboxError
from hermes.safety.urls import is_public
from hermes.sandbox import open_sandbox
from hermes.sandbox.docker import run_argv
from hermes.sandbox.network import plan, tunnel
from hermes.sandbox.open import unusable_reason

TUNNELS = ("pasta", "slirp4netns")
needs_bubblewrap = pytest.mark.skipif(
    unusable_reason("bubblewrap") is not None, reason="bubblewrap does not work here"
)


def test_the_refused_blocks_are_the_addresses_that_are_not_public() -> None:
    blocks = [ipaddress.IPv4Network(block) for block in plan.NOT_PUBLIC]
    edges = [int(block[end]) + step for block in blocks for end in (0, -1) for step in (-1, 0, 1)]
    rng = random.Random(18)
    drawn = [rng.getrandbits(32) for _ in range(5_000)]
    for number in (*edges, *drawn):
        if 0 <= number < 1 << 32:
            address = ipaddress.IPv4Address(number)
            assert is_public(str(address)) != any(address in block for block in blocks), address


def test_what_is_allowed_is_taken_out_of_what_is_refused() -> None:
    routes = plan.route_plan(["10.1.0.0/16", "192.168.0.0/16", "10.1.0.0/16"], ["198.18.0.5", "8.8.4.4"])
    assert routes.allowed == ("10.1.0.0/16", "192.168.0.0/16")
    assert "192.168.0.0/16" not in routes.refused
    assert {"10.0.0.0/8", "198.18.0.5/32", "8.8.4.4/32", "169.254.0.0/16"} <= set(routes.refused)


@pytest.mark.parametrize("item", ["localhost", "127.0.0.1", "::1", "10.0.2.2", "10.0.2.0/25", "1.2.3.4/33"])
def test_names_loopback_and_the_tunnels_own_addresses_cannot_be_allowed(item: str) -> None:
    with pytest.raises(ConfigError, match=r"sandbox\.network_allow"):
        plan.route_plan([item], [])


@pytest.mark.skipif(not Path("/proc/net/fib_trie").exists(), reason="Linux lists its addresses in /proc")
def test_the_addresses_of_this_machine_are_known() -> None:
    table = Path("/proc/net/fib_trie").read_text()
    assert all(f"|-- {address}\n" in table for address in plan.own_addresses(table))
    assert plan.own_addresses("  |-- 8.8.4.4\n     /32 host LOCAL\n  |-- 127.0.0.1\n   /32 host LOCAL\n") == [
        "8.8.4.4"
    ]


def test_no_port_and_no_loopback_is_forwarded() -> None:
    pasta = " ".join(plan.pasta_argv("/usr/bin/pasta", root=False))
    for option in ("--tcp-ports", "--udp-ports", "--tcp-ns", "--udp-ns"):
        assert f"{option} none" in pasta
    assert "--no-map-gw" in pasta
    assert "--ipv4-only" in pasta
    assert "--disable-host-loopback" in plan.slirp4netns_argv("/usr/bin/slirp4netns")


@needs_bubblewrap
async def test_without_a_tunnel_the_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(plan.shutil, "which", lambda name: None if name in TUNNELS else which(name))
    monkeypatch.setattr(tunnel, "installed_tunnels", lambda *, root: [])
    with pytest.raises(SandboxError, match="neither pasta nor slirp4netns") as refusal:
        await open_sandbox(SandboxSettings(backend="bubblewrap", network=True), interactive=False)
    assert "network_allow: [host]" in refusal.value.hint


@needs_bubblewrap
async def test_a_tunnel_that_does_not_work_is_no_host_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tunnel, "installed_tunnels", lambda *, root: [plan.Tunnel("broken", ("/bin/false", "{netns}"))]
    )
    sandbox = await open_sandbox(SandboxSettings(backend="bubblewrap", network=True), interactive=False)
    try:
        with pytest.raises(SandboxError, match="no tunnel to the network works") as refusal:
            await sandbox.run("true")
        assert "passt" in refusal.value.hint
    finally:
        await sandbox.close()


def test_a_containers_bridge_has_to_be_named() -> None:
    settings = SandboxSettings(backend="docker", network=True)
    with pytest.raises(SandboxError, match="private networks"):
        run_argv("docker", settings, Path("/w"), "n", (1, 1), rootless=False)
    settings = settings.model_copy(update={"network_allow": ("host",)})
    argv = run_argv("docker", settings, Path("/w"), "n", (1, 1), rootless=False)
    assert argv[argv.index("--network") + 1] == "bridge"


@contextmanager
def server(address: str) -> Iterator[int]:
    """Says `reached` to whoever connects."""
    with socket.create_server((address, 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"reached")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


_CONNECT = (
    "python3 -I -c \"import socket; print(socket.create_connection(('{}', {}), 20).recv(9))\" 2>&1 | tail -1"
)


@needs_bubblewrap
@pytest.mark.parametrize("name", TUNNELS)
async def test_the_host_is_out_of_reach_unless_it_is_allowed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = plan.read_own_addresses()
    tunnels = [item for item in plan.installed_tunnels(root=os.geteuid() == 0) if item.name == name]
    if not tunnels:
        pytest.skip(f"needs {name}: it is not installed")
    if not own:
        pytest.skip("needs a machine with an address besides loopback")
    monkeypatch.setattr(tunnel, "installed_tunnels", lambda *, root: tunnels)
    settings = SandboxSettings(backend="bubblewrap", network=True)
    with server("0.0.0.0") as port:
        closed = await open_sandbox(settings, interactive=False)
        try:
            try:
                routes = (await closed.run("cat /proc/net/route /etc/resolv.conf")).output
            except SandboxError as error:
                pytest.skip(f"needs {name} to work here: {error.message}")
            assert "tap0" in routes
            assert f"nameserver {plan.DNS}" in routes
            for address in ("127.0.0.1", own[0], plan.GATEWAY, "192.168.255.254", "169.254.169.254"):
                answer = (await closed.run(_CONNECT.format(address, port))).output
                expected = "Connection refused" if address == "127.0.0.1" else "Permission denied"
                assert expected in answer, (address, answer)
            changed = await closed.run("ip route del prohibit 192.168.0.0/16; ip link set tap0 down")
            assert changed.exit_code != 0
        finally:
            await closed.close()
        allowing = settings.model_copy(update={"network_allow": (own[0],)})
        opened = await open_sandbox(allowing, interactive=False)
        try:
            answers = await asyncio.gather(
                opened.run(_CONNECT.format(own[0], port)), opened.run(_CONNECT.format("127.0.0.1", port))
            )
            assert "reached" in answers[0].output
            assert "Connection refused" in answers[1].output
        finally:
            await opened.close()
    assert _left_over(name) == []


def _left_over(program: str) -> list[int]:
    """The tunnels whose sandbox is gone."""
    tunnels = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "comm").read_text().strip() == program:
                target = re.search(r"/proc/(\d+)/ns/net", (process / "cmdline").read_text())
                if target is not None and not Path("/proc", target[1]).exists():
                    tunnels.append(int(process.name))
        except OSError:
            continue
    return tunnels
