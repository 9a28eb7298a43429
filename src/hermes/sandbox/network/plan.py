"""Plans what a sandbox with `sandbox.network` may reach, and the command lines of the tunnels. Pure.

The sandbox has a network namespace of its own. A tunnel (pasta, else slirp4netns) joins it to the outside, in
user space and without root. Routes of the namespace refuse every address that is not public, the addresses of
this machine among them; commands have no capabilities and cannot change routes. Names are resolved by this
machine's resolver, which the tunnel reaches at `DNS`. IPv4 only.

Not refused: addresses outside that lead back to this machine through a router's address translation.
"""

from __future__ import annotations

import ipaddress
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import ConfigError

if TYPE_CHECKING:
    from hermes.config.settings import SandboxSettings

HOST = "host"
"""In `sandbox.network_allow`: no namespace, the network of the host with its loopback."""
GUEST_NETWORK = "10.0.2.0/24"
GUEST = "10.0.2.100"
GATEWAY = "10.0.2.2"
DNS = "10.0.2.3"
INTERFACE = "tap0"
NOT_PUBLIC = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
"""The blocks of addresses for which `safety.urls.is_public` is false."""
FIX = (
    "Install passt or slirp4netns (apt install passt slirp4netns); or set sandbox.network_allow: [host], "
    "which gives commands the network of this machine: its loopback servers and its private networks."
)
_LOCAL_ADDRESS = re.compile(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL")


@dataclass(frozen=True, slots=True)
class Tunnel:
    """A program that joins a network namespace to the outside."""

    name: str
    argv: tuple[str, ...]
    """Its command line; `{userns}` and `{netns}` stand for the files of the namespaces."""


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """The routes of a sandbox. The longest prefix decides."""

    refused: tuple[str, ...]
    allowed: tuple[str, ...]
    guest_network: str = GUEST_NETWORK
    gateway: str = GATEWAY
    dns: str = DNS
    interface: str = INTERFACE

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def shares_host(settings: SandboxSettings) -> bool:
    return settings.network and HOST in settings.network_allow


def has_own_network(settings: SandboxSettings) -> bool:
    """True if the sandbox has a network to the outside in a namespace of its own."""
    return settings.network and not shares_host(settings)


def route_plan(allow: Iterable[str], own_addresses: Iterable[str]) -> RoutePlan:
    """Refuses what is not public and this machine's addresses, except what is allowed."""
    allowed = tuple(dict.fromkeys(str(_block(item)) for item in allow))
    machine_blocks = (f"{address}/32" for address in own_addresses)
    refused = tuple(block for block in dict.fromkeys((*NOT_PUBLIC, *machine_blocks)) if block not in allowed)
    return RoutePlan(refused, allowed)


def _block(item: str) -> ipaddress.IPv4Network:
    try:
        block = ipaddress.IPv4Network(item, strict=False)
    except ValueError as error:
        raise ConfigError(
            f"sandbox.network_allow: '{item}' is not an IPv4 address or block.",
            "Write addresses as 192.168.1.7, blocks as 10.1.0.0/16, or host for the host's own network.",
        ) from error
    for reserved in ("127.0.0.0/8", GUEST_NETWORK):
        if block.overlaps(ipaddress.IPv4Network(reserved)) and block.prefixlen >= 8:
            raise ConfigError(
                f"sandbox.network_allow: '{item}' overlaps {reserved}, which is the sandbox's own.",
                "The loopback of this machine is reached only with sandbox.network_allow: [host].",
            )
    return block


def own_addresses(fib_trie: str) -> list[str]:
    """The IPv4 addresses of this machine, from the text of /proc/net/fib_trie."""
    addresses = dict.fromkeys(_LOCAL_ADDRESS.findall(fib_trie))
    return [address for address in addresses if not address.startswith("127.")]


def read_own_addresses() -> list[str]:
    return own_addresses(Path("/proc/net/fib_trie").read_text())


def installed_tunnels(*, root: bool) -> list[Tunnel]:
    """The tunnels of this machine, the preferred one first."""
    tunnels = []
    if pasta := shutil.which("pasta"):
        tunnels.append(Tunnel("pasta", tuple(pasta_argv(pasta, root=root))))
    if slirp4netns := shutil.which("slirp4netns"):
        tunnels.append(Tunnel("slirp4netns", tuple(slirp4netns_argv(slirp4netns))))
    return tunnels


def pasta_argv(program: str, *, root: bool) -> Sequence[str]:
    """No port of either side is forwarded, and the gateway is not this machine's loopback.

    Root would become nobody, who may not open the namespaces; it has no capabilities outside the namespace.
    """
    argv = [program, "--foreground", "--ipv4-only", "--config-net", "--no-map-gw"]
    argv += ["--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none"]
    argv += ["--ns-ifname", INTERFACE, "--address", GUEST, "--netmask", "24", "--gateway", GATEWAY]
    argv += ["--dns-forward", DNS, *(["--runas", "0:0"] if root else [])]
    return [*argv, "--userns", "{userns}", "--netns", "{netns}"]


def slirp4netns_argv(program: str) -> Sequence[str]:
    """Its own network is 10.0.2.0/24 with these addresses; the gateway is not this machine's loopback."""
    argv = [program, "--configure", "--disable-host-loopback", "--mtu=65520", f"--cidr={GUEST_NETWORK}"]
    argv += ["--enable-sandbox", "--enable-seccomp", "--netns-type=path", "--userns-path={userns}"]
    return [*argv, "{netns}", INTERFACE]
