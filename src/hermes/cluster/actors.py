"""Every kind of actor on a Ray cluster shares this: the versions of its node, its node, and how it ended."""

from __future__ import annotations

import importlib
import platform
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from hermes import __version__
from hermes.errors import HermesError, HostError

Versions = dict[str, str]


def installed_versions(*packages: str) -> Versions:
    """The versions that have to be equal on all nodes: of what is sent, and the `packages` that compute."""
    return {
        "hermes": __version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        **{package: version(package).partition("+")[0] for package in packages},
    }


def check_versions(versions: Versions, *packages: str) -> None:
    """On a node. HostError: it has other versions than the process that placed the actor there."""
    node = installed_versions(*packages)
    names = [name for name in node if node[name] != versions[name]]
    if names:
        differences = ", ".join(f"{name} {node[name]} instead of {versions[name]}" for name in names)
        raise HostError(
            f"a Ray node has other versions than the machine of the command: {differences}",
            f"pip install 'hermes-research[ray]=={versions['hermes']}' on every node, with the same Python",
        )


@dataclass(frozen=True, slots=True)
class ActorEnd:
    text: str
    """How it ended, as the end of a sentence."""
    problem: HermesError | None = None
    """Why no actor like it can work; None: another one may."""


def wait_for_end(ray: Any, wait: Callable[[], None]) -> ActorEnd:
    """`wait` returns when the actor's work has ended, and raises what Ray raises. A lost node is noticed by
    Ray, after seconds to half a minute."""
    errors = ray.exceptions
    try:
        wait()
    except errors.RayTaskError as error:
        cause = error.cause
        problem = cause if isinstance(cause, HermesError) else None
        return ActorEnd(f"failed: {first_line(cause)}", problem)
    except errors.RayError as error:
        return ActorEnd(f"was lost by Ray: {first_line(error)}", _start_problem(error))
    return ActorEnd("ended")


def _start_problem(error: BaseException) -> HermesError | None:
    if not getattr(error, "actor_init_failed", False):
        return None
    return HostError(
        f"a Ray actor cannot start: {last_line(error)}", "install Hermes with the same extras on every node"
    )


class EvenPlacement:
    """Nodes for actors that reserve no CPU. Ray's own spreading would put them all on one node."""

    RESOURCES: Mapping[str, int] = MappingProxyType({"num_cpus": 0, "memory": 1})
    """One byte: Ray applies node affinity only to actors that request a resource."""

    def __init__(self, ray: Any) -> None:
        """`ray`: the module, connected to a cluster."""
        self._ray = ray
        self._placed: Counter[str] = Counter()

    def choose_node(self) -> Any:
        """Scheduling strategy for the node with the fewest actors so far, among those that have CPUs.

        Only preferred: the node may die before the actor is on it.
        """
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        working = [node for node in alive if node["Resources"].get("CPU")] or alive
        chosen: str = min((node["NodeID"] for node in working), key=lambda node: self._placed[node])
        self._placed[chosen] += 1
        return strategies.NodeAffinitySchedulingStrategy(chosen, soft=True)


def first_line(error: BaseException) -> str:
    return _lines(error)[0]


def last_line(error: BaseException) -> str:
    return _lines(error)[-1]


def _lines(error: BaseException) -> list[str]:
    return str(error).strip().splitlines() or [type(error).__name__]
