"""Chooses where each task runs: in bubblewrap if its Dockerfile allows that, else in a container."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hermes.envs.harbor.containers import ContainerPlaces, clean_containers
from hermes.envs.harbor.place import BubblewrapPlaces, PlaceOptions
from hermes.envs.harbor.roots import remove_roots
from hermes.envs.harbor.schema import TaskError
from hermes.envs.harbor.trial import sweep
from hermes.errors import SandboxError
from hermes.sandbox.docker import find_engine
from hermes.sandbox.open import unusable_reason

if TYPE_CHECKING:
    from hermes.config.settings import SandboxSettings
    from hermes.envs.harbor.task import Task
    from hermes.envs.harbor.trial import Places

Kind = Literal["auto", "bubblewrap", "container"]


@dataclass(frozen=True)
class ChosenPlaces:
    """The first kind that can run a task, in the order of preference."""

    kinds: tuple[tuple[str, Places], ...]
    options: PlaceOptions

    def kind_of(self, task: Task) -> str:
        """TaskError: none can run it, with each one's reason."""
        errors = []
        for name, places in self.kinds:
            try:
                places.check(task)
            except TaskError as error:
                errors.append(error.message if len(self.kinds) == 1 else f"{name}: {error.message}")
                continue
            return name
        raise TaskError(" ".join(errors))

    def check(self, task: Task) -> None:
        self.kind_of(task)

    def of(self, task: Task) -> Places:
        return dict(self.kinds)[self.kind_of(task)]


def open_places(home: Path, settings: SandboxSettings, options: PlaceOptions, kind: Kind) -> ChosenPlaces:
    """SandboxError: this machine has none of the kinds."""
    kinds: list[tuple[str, Places]] = []
    reasons = []
    if kind in ("auto", "bubblewrap"):
        reason = unusable_reason("bubblewrap")
        if reason is None:
            kinds.append(("bubblewrap", BubblewrapPlaces(home, settings, options)))
        else:
            reasons.append(reason)
    if kind in ("auto", "container"):
        reason = unusable_reason("docker")
        if reason is None:
            kinds.append(("container", ContainerPlaces(home, settings, options)))
        else:
            reasons.append(reason)
    if not kinds:
        raise SandboxError(
            f"no task can be run on this machine: {'; '.join(reasons)}.",
            "Install bubblewrap (apt install bubblewrap), docker or podman.",
        )
    return ChosenPlaces(tuple(kinds), options)


def clean(home: Path) -> dict[str, int]:
    """Removes built roots and images, and what killed trials have left; how many of each are gone.

    What a running trial or build uses stays.
    """
    removed = {"trials": sweep(home), "roots": remove_roots(home)}
    if unusable_reason("docker") is not None:
        return removed
    return {**removed, **clean_containers(find_engine(), home, with_built=True)}


def sweep_all(home: Path, places: ChosenPlaces) -> None:
    """Removes what killed trials have left: folders, containers and images."""
    sweep(home)
    if any(name == "container" for name, _ in places.kinds):
        clean_containers(find_engine(), home, with_built=False)
