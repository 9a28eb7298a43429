"""Connecting to a Ray cluster, or starting one on this machine; with token authentication either way.

A client of a Ray cluster can run any program on it, with the keys of its nodes. So a cluster started here
listens on loopback only and requires a token that is valid as long as this process; and a cluster that
accepts connections without a token is refused, unless the user allows it. All this is set by environment
variables, which Ray reads when it is imported: call `prepare` before anything that may import Ray, such as a
user's reward function. A Ray module imported earlier lacks the token, and its own cluster rejects it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from hermes.errors import HermesError, MissingDependencyError, UsageError

_LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's switch for systems where it serves one machine only; without it, 127.0.0.1 is replaced by a public
address of the machine, and every port is open to the network."""
_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_TOKEN_MODE = {"RAY_AUTH_MODE": "token"}
_PROBE = "import sys, ray; ray._raylet.GcsClient(address=sys.argv[1])"
"""Succeeds if the cluster accepts the connection. `ray.init` would also do, but retries for a minute."""
_PROBE_S = 120.0


def prepare(
    address: str | None, *, insecure: bool, purpose: str = "--executor ray", flag: str = "--ray-address"
) -> None:
    """Configures the process for the cluster at `address` or a new one; refuses one without token.

    `purpose` and `flag`: what needs Ray, and the option that names the address, for errors.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingDependencyError("ray", "ray", purpose)
    if address is None:
        os.environ.update({**_LOOPBACK_ONLY, **_TOKEN_MODE, "RAY_AUTH_TOKEN": _own_token()})
    else:
        _prepare_connection(address, flag, insecure=insecure)


@contextmanager
def open_cluster(address: str | None, num_workers: int) -> Iterator[Any]:
    """Yields the `ray` module, connected; a cluster started here ends with the block or the process."""
    if address is not None:
        with _connect(address) as ray:
            yield ray
        return
    with tempfile.TemporaryDirectory(prefix="hermes-ray-", ignore_cleanup_errors=True) as private:
        options = {
            "num_cpus": num_workers,  # only the number of processes Ray keeps ready: the actors request none
            "num_gpus": 0,
            "include_dashboard": False,
            "_temp_dir": f"{private}/ray",  # Ray opens this folder to all users; the one above stays closed
        }
        with _connect("local", **options) as ray:
            yield ray


@contextmanager
def _connect(address: str, **options: Any) -> Iterator[Any]:
    ray = importlib.import_module("ray")
    location = "on this machine" if address == "local" else f"at {address}"
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        hint = "see docs/batch-ray.md for what must run where"
        raise HermesError(f"cannot use a Ray cluster {location}: {error}", hint) from error
    # When a node dies, Ray prints pages of its log, and again at the end. The run reports the death itself.
    with Path(os.devnull).open("w") as null, redirect_stdout(null):
        try:
            yield ray
        finally:
            ray.shutdown()


def _prepare_connection(address: str, flag: str, *, insecure: bool) -> None:
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdecimal():
        raise UsageError(
            f"{flag} {address} is not HOST:PORT",
            "give the address that the head node's 'ray start' printed, on a machine that is a node itself",
        )
    if host in _LOOPBACK_HOSTS:
        os.environ.update(_LOOPBACK_ONLY)
    if insecure:
        return
    if _accepts(address, {"RAY_AUTH_MODE": "disabled"}):
        raise UsageError(
            f"the Ray cluster at {address} accepts every client that can reach it",
            "start its nodes with RAY_AUTH_MODE=token, or add --ray-insecure if its network is closed",
        )
    if not _accepts(address, _TOKEN_MODE):
        raise UsageError(
            f"there is no Ray cluster at {address}, or it does not accept this machine's token",
            "put its token, which 'ray get-auth-token' prints on its nodes, into ~/.ray/auth_token",
        )
    os.environ.update(_TOKEN_MODE)


def _accepts(address: str, mode: dict[str, str]) -> bool:
    """Probed from another process: the mode of this one cannot be changed back."""
    command = [sys.executable, "-P", "-c", _PROBE, address]
    try:
        probe = subprocess.run(command, env={**os.environ, **mode}, capture_output=True, timeout=_PROBE_S)
    except subprocess.TimeoutExpired:
        return False
    return probe.returncode == 0


@functools.cache
def _own_token() -> str:
    """One for the process: Ray reads it once."""
    return secrets.token_hex(32)
