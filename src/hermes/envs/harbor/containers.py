"""Places in containers of docker or podman: any image, built once and kept by the content it is built from.

The agent's container is kept as an image when it is closed or verified, and the verifier's is a new one of
that image, with `/tests` and `/logs/verifier` mounted from outside. Storage is not limited in a container.

A place has a container that never runs: while it exists, its engine removes the image for nobody.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import JSONObject, new_id
from hermes.disk.filelock import FileLock
from hermes.disk.files import make_private_dirs
from hermes.envs.harbor.place import (
    SOLUTION,
    TESTS,
    VERIFIER_LOGS,
    Place,
    PlaceOptions,
    check_machine,
    limited,
)
from hermes.envs.harbor.schema import Artifact, Machine, NetworkMode, TaskError
from hermes.envs.harbor.task import Task, folder_digest
from hermes.errors import SandboxError
from hermes.sandbox.directory import work_in
from hermes.sandbox.docker import find_engine
from hermes.sandbox.task_container import (
    REPOSITORY,
    TRIAL_IMAGE,
    ContainerPlan,
    TaskContainer,
    call_engine,
    container_name,
    containers,
    has_ended,
    image_name,
    images,
    remove_container,
    remove_image,
)
from hermes.sandbox.workspace import Mount, Workspace

if TYPE_CHECKING:
    from hermes.config.settings import SandboxSettings
    from hermes.sandbox.base import Sandbox

_BUILDING = "building"
"""A lock of which everyone who builds has a share: images have layers in common."""


class ContainerPlaces:
    """Builds images and opens places in containers of them. SandboxError: no engine answers."""

    def __init__(self, home: Path, settings: SandboxSettings, options: PlaceOptions) -> None:
        self._engine = find_engine()
        self._home = home
        self._settings = settings
        self._options = options

    def check(self, task: Task) -> None:
        check_machine(task.file.machine, self._options)
        storage_mb = task.file.machine.storage_mb or 0
        free_mb = shutil.disk_usage("/").free >> 20
        if storage_mb > free_mb:
            raise TaskError(f"environment.storage_mb = {storage_mb}: this machine has {free_mb} MB left.")

    async def open(self, environment: Path, machine: Machine, folder: Path) -> ContainerPlace:
        building = _lock(self._home, _BUILDING)
        await building.wait(shared=True)
        try:
            inspected, hold = await self._held(environment, machine)
        except SandboxError:  # who cleans for another home has removed the image meanwhile
            inspected, hold = await self._held(environment, machine)
        finally:
            building.release()
        workdir = machine.workdir or (inspected.get("Config") or {}).get("WorkingDir") or "/"
        return ContainerPlace(
            self._engine, self._settings, self._options, machine, inspected["Id"], hold, folder, workdir
        )

    def remove_built(self, environment: Path, machine: Machine) -> None:
        if machine.docker_image is None:
            _remove_kept(self._engine, self._home, [_image_name(environment)])

    async def _held(self, environment: Path, machine: Machine) -> tuple[JSONObject, str]:
        """Returns what the engine says of the task's image, and a container of it."""
        inspected = await self._image(environment, machine)
        return inspected, await _create(self._engine, inspected["Id"])

    async def _image(self, environment: Path, machine: Machine) -> JSONObject:
        """Returns what the engine says of the task's image."""
        image = machine.docker_image or await self._built(environment, machine)
        if machine.docker_image is not None:
            await self._pull(image, machine)
        inspected: JSONObject = json.loads(await call_engine(self._engine, "image", "inspect", image))[0]
        return inspected

    async def _pull(self, image: str, machine: Machine) -> None:
        if await self._has(image):
            return
        try:
            await call_engine(self._engine, "pull", image, timeout_s=machine.build_timeout_s)
        except SandboxError as error:
            reason = f"cannot be pulled: {error.message}"
            raise TaskError(f"environment.docker_image = {image} {reason}") from error

    async def _built(self, environment: Path, machine: Machine) -> str:
        image = await asyncio.to_thread(_image_name, environment)
        lock = _lock(self._home, image.rpartition(":")[2])
        await lock.wait()
        try:
            if not await self._has(image):
                words = ("build", "--tag", image, str(environment))
                await call_engine(self._engine, *words, timeout_s=machine.build_timeout_s)
        except SandboxError as error:
            raise TaskError(f"environment/Dockerfile cannot be built: {error.message}") from error
        finally:
            lock.release()
        return image

    async def _has(self, image: str) -> bool:
        try:
            await call_engine(self._engine, "image", "inspect", image)
        except SandboxError:
            return False
        return True


def _image_name(environment: Path) -> str:
    """Named by the content that it is built from."""
    return f"{REPOSITORY}:{hashlib.sha256(folder_digest(environment)).hexdigest()[:32]}"


class ContainerPlace:
    def __init__(
        self,
        engine: str,
        settings: SandboxSettings,
        options: PlaceOptions,
        machine: Machine,
        image: str,
        hold: str,
        folder: Path,
        workdir: str,
    ) -> None:
        self.workdir = workdir
        self._engine = engine
        self._settings = settings
        self._options = options
        self._machine = machine
        self._image = image
        self._hold = hold
        self._folder = folder
        self._kept: list[str] = []
        """Images of this trial."""
        self._agent: _AgentContainer | None = None
        """The agent's container while it is open."""

    async def open_agent(
        self,
        *,
        variables: Mapping[str, str],
        network: NetworkMode,
        timeout_s: float,
        user: str | None = None,
        shown_paths: Sequence[str] = (),
        solution: Path | None = None,
    ) -> Sandbox:
        mounts = [Mount(self._new_folder("nothing"), VERIFIER_LOGS, False)]
        if solution is not None:
            copy = self._new_folder("solution")
            await asyncio.to_thread(shutil.copytree, solution, copy, symlinks=True, dirs_exist_ok=True)
            mounts.append(Mount(copy, SOLUTION, True))
        container = await self._start(mounts, variables, network, timeout_s, user, shown_paths)
        self._agent = _AgentContainer(container, self)
        return await work_in(self._agent, self.workdir)

    async def open_verifier(
        self,
        tests: Sequence[Path],
        logs: Path,
        *,
        variables: Mapping[str, str],
        network: NetworkMode,
        timeout_s: float,
        user: str | None = None,
    ) -> Sandbox:
        copy = self._new_folder("tests")
        for path in tests:
            await asyncio.to_thread(shutil.copytree, path, copy, symlinks=True, dirs_exist_ok=True)
        logs.mkdir()
        logs.chmod(0o777)  # the verifier's user may be any
        if self._agent is not None:
            await self._agent.keep()
        mounts = [Mount(copy, TESTS, True), Mount(logs, VERIFIER_LOGS, True)]
        return await work_in(await self._start(mounts, variables, network, timeout_s, user, ()), self.workdir)

    async def _start(
        self,
        mounts: Sequence[Mount],
        variables: Mapping[str, str],
        network: NetworkMode,
        timeout_s: float,
        user: str | None,
        shown_paths: Sequence[str],
    ) -> TaskContainer:
        workspace = Workspace(
            self._new_folder("workspace"),
            fresh=True,
            shown_paths=tuple(shown_paths),
            mounts=tuple(mounts),
            variables={**self._machine.variables, **variables},
            folder=self._folder,
        )
        cpus = self._machine.cpus or 2
        plan = ContainerPlan(self._engine, self._image, workspace, user, cpus)
        settings = limited(self._settings, self._machine, self._options, network, timeout_s)
        container = await TaskContainer.start_from(settings, plan)
        folders = " ".join(map(shlex.quote, (self.workdir, "/logs/agent", "/logs/artifacts")))
        await container.run(f"mkdir -p {folders}")
        return container

    def _new_folder(self, name: str) -> Path:
        folder = self._folder / f"{name}-{new_id()}"
        folder.mkdir()
        folder.chmod(0o755)
        return folder

    async def keep(self, container: TaskContainer) -> None:
        """From now on containers have the files of this one."""
        await container.kill_all()
        image = image_name()
        self._kept.append(image)
        await container.commit(image)
        self._image = image

    def agent_ended(self) -> None:
        self._agent = None

    async def take(self, artifacts: Sequence[Artifact], source_place: Place) -> None:
        assert isinstance(source_place, ContainerPlace), "a task has one kind of place"
        if source_place._agent is not None:
            await source_place._agent.keep()
        source = await _create(self._engine, source_place._image)
        try:
            target = await self._start([], {}, "no-network", 600, "0", ())
            try:
                for number, artifact in enumerate(artifacts):
                    copy = self._folder / f"artifact-{number}"
                    try:
                        await call_engine(self._engine, "cp", f"{source}:{artifact.source}", str(copy))
                    except SandboxError:  # it is not there
                        continue
                    await target.copy_in(copy, artifact.destination)
                await self.keep(target)
            finally:
                await target.close()
        finally:
            await asyncio.to_thread(remove_container, self._engine, source)

    async def close(self) -> None:
        for image in reversed(self._kept):
            await asyncio.to_thread(remove_image, self._engine, image)
        await asyncio.to_thread(remove_container, self._engine, self._hold)


async def _create(engine: str, image: str) -> str:
    """Returns the name of a container that is not started. SandboxError: there is no such image."""
    name = container_name()
    await call_engine(engine, "create", "--pull", "never", "--name", name, image, "true")
    return name


class _AgentContainer:
    """The agent's sandbox; what it leaves is kept when it is closed."""

    def __init__(self, container: TaskContainer, task_place: ContainerPlace) -> None:
        self._container = container
        self._place = task_place
        self.backend, self.isolated, self.workspace = container.backend, True, "/"
        self.run, self.start = container.run, container.start
        self.read_file, self.write_file = container.read_file, container.write_file
        self.kill_all = container.kill_all

    async def keep(self) -> None:
        await self._place.keep(self._container)

    async def close(self) -> None:
        try:
            await self.keep()
        finally:
            self._place.agent_ended()
            await self._container.close()


def clean_containers(engine: str, home: Path, *, with_built: bool) -> dict[str, int]:
    """Removes containers and images of processes that have ended, and counts those that are gone.

    `with_built`: also images that tasks were built into, unless the engine finds them in use.
    """
    names = [name for name in containers(engine) if has_ended(name)]
    removed = {"containers": sum(remove_container(engine, name) for name in names)}
    names = images(engine)
    removed["images"] = sum(remove_image(engine, name) for name in names if has_ended(name))
    if with_built:
        built = [name for name in names if not name.startswith(TRIAL_IMAGE)]
        removed["images"] += _remove_kept(engine, home, built)
    return removed


def _remove_kept(engine: str, home: Path, names: Sequence[str]) -> int:
    """Returns how many are gone: none while another one of this home is being built."""
    lock = _lock(home, _BUILDING)
    if not lock.acquire(blocking=False):
        return 0
    try:
        return sum(remove_image(engine, name) for name in names)
    finally:
        lock.release()


def _lock(home: Path, name: str) -> FileLock:
    folder = home / "harbor" / "locks"
    make_private_dirs(folder)
    return FileLock(folder / name)
