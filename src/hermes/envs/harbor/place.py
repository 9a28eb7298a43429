"""Where a trial's commands run: what every kind of place gives, and bubblewrap on this machine's own root.

A place has the files of one trial. The agent's sandboxes have neither the tests nor the solution, and an
empty read-only `/logs/verifier`; the verifier's sandbox is another one over the same files, in which nothing
of the agent runs, with `/tests` and `/logs/verifier` fresh from outside. Built roots are kept in
`HOME/harbor/roots` by the content that they are built from.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import math
import os
import posixpath
import re
import shlex
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from hermes.core import new_id
from hermes.disk.files import make_private_dirs
from hermes.disk.trees import remove_tree
from hermes.envs.harbor.dockerfile import Copy, Host, Recipe, read_dockerfile, read_recipe
from hermes.envs.harbor.roots import BuiltRoot, remove_root, remove_unfinished, root_lock
from hermes.envs.harbor.schema import Artifact, Machine, NetworkMode, TaskError
from hermes.envs.harbor.task import Task, folder_digest
from hermes.errors import ConfigError
from hermes.sandbox.bubblewrap import BubblewrapSandbox
from hermes.sandbox.bwrap_args import host_layout
from hermes.sandbox.directory import work_in
from hermes.sandbox.task_root import TaskRoot, copy_for_sandbox, give_to_sandbox
from hermes.sandbox.workspace import Mount

if TYPE_CHECKING:
    from hermes.batch.options import HarborPlaceOptions
    from hermes.config.settings import SandboxSettings
    from hermes.sandbox.base import Sandbox

VERIFIER_LOGS = "/logs/verifier"
TESTS = "/tests"
SOLUTION = "/solution"
_PACKAGES = "/.packages"
_TEST_PACKAGES = "/.test-packages"
_AGENT_FILES = "/.agent"
_ENSURE_PIP = "python3 -c 'import pip' 2> /dev/null || python3 -m ensurepip --user --default-pip"
_FORMAT = 2
"""The version of built roots; a change of it builds them again."""


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """Settings of places that a person decides, and no file of a task."""

    network: Literal["none", "task"] = "none"
    """`none`: no sandbox has a network, whatever the task says; `task`: as the task says."""
    bases: tuple[str, ...] = ()
    """Further base images, as patterns, for which this machine's own root stands."""
    wheels: Path | None = None
    """A folder of Python packages that pip installs from while an image is built and tests run."""

    @classmethod
    def of(cls, options: HarborPlaceOptions) -> PlaceOptions:
        """ConfigError: there is no folder `wheels`."""
        folder = None if options.wheels is None else Path(options.wheels).expanduser().resolve()
        if folder is not None and not folder.is_dir():
            raise ConfigError(f"there is no folder '{folder}'.", "Make it: pip download -d FOLDER PACKAGE …")
        return cls(options.network, tuple(options.bases), folder)


class Place(Protocol):
    """The files of one trial; `close` removes them."""

    @property
    def workdir(self) -> str: ...

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
        """A sandbox over the files, whose relative paths begin in the working directory."""
        ...

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
        """One in which nothing of the agent runs; `logs` is a new folder, as which it has /logs/verifier."""
        ...

    async def take(self, artifacts: Sequence[Artifact], source_place: Place) -> None:
        """Copies these paths out of another place of the same kind; what is not there is left out."""
        ...

    async def close(self) -> None: ...


def check_machine(machine: Machine, options: PlaceOptions) -> None:
    """TaskError: this machine cannot give what the task asks of it."""
    total_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    if machine.memory_mb is not None and machine.memory_mb > total_mb:
        raise TaskError(f"environment.memory_mb = {machine.memory_mb}: this machine has {total_mb} MB.")
    if options.network == "task" and machine.network == "allowlist":
        raise TaskError("environment.network_mode = allowlist: only no network, or all of it, can be given.")


def check_user(user: str | None, field: str) -> None:
    if user not in (None, "root", "0"):
        raise TaskError(f"{field} = {user}: bubblewrap has one user; use a container engine.")


def limited(
    settings: SandboxSettings, machine: Machine, options: PlaceOptions, network: NetworkMode, timeout_s: float
) -> SandboxSettings:
    """The settings of a sandbox with the task's limits."""
    cpu_s = math.ceil(timeout_s) * max(machine.cpus or 1, 1)
    return settings.model_copy(
        update={
            "memory_mb": max(64, machine.memory_mb or settings.memory_mb),
            "disk_mb": max(16, machine.storage_mb or settings.disk_mb),
            "network": options.network == "task" and network == "public",
            "cpu_s": max(settings.cpu_s, cpu_s),
            "command_timeout_s": min(settings.command_timeout_s, timeout_s),
        }
    )


async def put_tree(sandbox: Sandbox, source: Path, target: str) -> None:
    """Lays the files of a folder into a sandbox, as its user; TaskError: they do not get there."""
    packed = await asyncio.to_thread(_packed, source)
    command = f"mkdir -p -- {shlex.quote(target)} && tar -xf - --no-same-owner -C {shlex.quote(target)}"
    ended = await sandbox.run(command, cwd="/", stdin=packed, timeout_s=600)
    if ended.exit_code:
        raise TaskError(f"{source.name} cannot be copied to {target}: {ended.output.strip()[-200:]}.")


def _packed(source: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(source, arcname=".")
    return buffer.getvalue()


class BubblewrapPlaces:
    """Builds roots for tasks and opens places on copies of them."""

    def __init__(self, home: Path, settings: SandboxSettings, options: PlaceOptions) -> None:
        self._folder = home / "harbor" / "roots"
        self._settings = settings
        self._options = options

    def recipe(self, environment: Path, machine: Machine) -> Recipe:
        """TaskError: bubblewrap cannot do what the image needs."""
        host = Host.here(host_layout(shares_network=False).path, self._options.bases)
        dockerfile = environment / "Dockerfile"
        if not dockerfile.is_file() or machine.docker_image is not None:
            return read_recipe(f"FROM {machine.docker_image}\n", host)
        return read_recipe(read_dockerfile(dockerfile), host)

    def check(self, task: Task) -> None:
        """TaskError: the task needs a container engine, or a larger machine."""
        check_machine(task.file.machine, self._options)
        self.recipe(task.environment, task.file.machine)
        for stage in task.stages:
            agent = task.file.agent if stage.part is None else stage.part.agent
            check_user(agent.user, "agent.user")
            check_user(task.verifier_of(stage).user, "verifier.user")
            for entry in task.verifier_of(stage).collect:
                check_user(entry.user, "verifier.collect.user")

    async def open(self, environment: Path, machine: Machine, folder: Path) -> BubblewrapPlace:
        """A place of its own in `folder`. TaskError: its image cannot be built here."""
        built = await self._built(environment, machine)
        try:
            root = await asyncio.to_thread(built.root.copy, folder / "root")
            for name in ("agent", "artifacts"):
                (root.folder / ".logs" / name).mkdir(parents=True)
            await asyncio.to_thread(give_to_sandbox, root.folder / ".logs")
        except BaseException:
            built.lock.release()
            raise
        workdir = machine.workdir or built.workdir
        return BubblewrapPlace(self._settings, self._options, machine, built, root, folder, workdir)

    def remove_built(self, environment: Path, machine: Machine) -> None:
        with suppress(TaskError):  # it could not be built
            remove_root(self._folder / self._key(environment, machine, self.recipe(environment, machine)))

    async def _built(self, environment: Path, machine: Machine) -> BuiltRoot:
        """The root of an image, in use from now on."""
        recipe = await asyncio.to_thread(self.recipe, environment, machine)
        key = await asyncio.to_thread(self._key, environment, machine, recipe)
        folder = self._folder / key
        await asyncio.to_thread(make_private_dirs, self._folder)
        self._folder.parent.chmod(0o711)
        self._folder.chmod(0o711)
        lock = root_lock(folder)
        while True:
            await lock.wait(shared=True)
            if folder.is_dir():
                break
            lock.release()
            await lock.wait()
            try:
                if not folder.is_dir():
                    await self._build(environment, machine, recipe, folder)
            finally:
                lock.release()
        about = json.loads((folder / "about.json").read_text())
        return BuiltRoot(folder, about["workdir"], about["variables"], lock)

    def _key(self, environment: Path, machine: Machine, recipe: Recipe) -> str:
        digest = hashlib.sha256(f"{_FORMAT} {recipe} {self._options} {machine.workdir}".encode())
        digest.update(folder_digest(environment))
        return digest.hexdigest()[:32]

    async def _build(self, environment: Path, machine: Machine, recipe: Recipe, target: Path) -> None:
        await asyncio.to_thread(remove_unfinished, target)  # of a process that was killed
        folder = self._folder / f"{target.name}.building-{new_id()}"
        folder.mkdir(mode=0o711)
        try:
            async with asyncio.timeout(machine.build_timeout_s):
                variables = await self._fill(environment, machine, recipe, folder)
            about = {"workdir": recipe.workdir, "variables": variables, "base": recipe.base}
            (folder / "about.json").write_text(json.dumps(about))
            folder.rename(target)
        except TimeoutError as error:
            raise TaskError(f"the image was not built in {machine.build_timeout_s:g} s.") from error
        finally:
            await asyncio.to_thread(remove_tree, folder)

    async def _fill(
        self, environment: Path, machine: Machine, recipe: Recipe, folder: Path
    ) -> dict[str, str]:
        """Runs the recipe; the variables of the image."""
        tops = [*recipe.tops, *([f"/{machine.workdir.split('/')[1]}"] if machine.workdir else [])]
        root = TaskRoot.create(folder / "root", tops)
        packages = folder / "packages"
        packages.mkdir()
        give_to_sandbox(packages)
        scratch = folder / "logs"  # some images make /logs/verifier; a trial mounts its own
        scratch.mkdir()
        give_to_sandbox(scratch)
        mounts = [Mount(packages, _PACKAGES, True), Mount(scratch, "/logs", True)]
        pip = pip_variables(self._options, _PACKAGES)
        settings = limited(self._settings, machine, self._options, "public", machine.build_timeout_s)
        workspace = root.workspace({"HOME": "/root"}, mounts=mounts, shown_paths=self._shown())
        sandbox = await BubblewrapSandbox.open(settings, workspace)
        try:
            for directory in filter(None, (recipe.workdir, machine.workdir)):
                await sandbox.run(f"mkdir -p -- {shlex.quote(directory)}", cwd="/")
            for action in recipe.actions:
                if isinstance(action, Copy):
                    await _copy(sandbox, environment, action)
                    continue
                directory = shlex.quote(action.workdir)
                if "pip" in action.command:
                    await sandbox.run(_ENSURE_PIP, cwd="/", env=pip)
                path = f"{_PACKAGES}/bin:{action.variables['PATH']}"
                ended = await sandbox.run(
                    f"mkdir -p -- {directory} && cd {directory} || exit\n{action.command}",
                    cwd="/",
                    env={**action.variables, **pip, "PATH": path},
                    timeout_s=machine.build_timeout_s,
                )
                if ended.exit_code:
                    lines = [line.strip() for line in ended.output.splitlines() if line.strip()]
                    first = action.command.strip().splitlines()[0][:60]
                    raise TaskError(
                        f"environment/Dockerfile: RUN {first} ended with {ended.exit_code}: "
                        f"{lines[-1][-200:] if lines else 'no output'}."
                    )
        finally:
            await sandbox.close()
        variables = dict(recipe.variables)
        libraries = sorted(packages.glob("lib/python*/site-packages"))
        if libraries:
            variables["PATH"] = f"{_PACKAGES}/bin:{variables['PATH']}"
            inside = f"{_PACKAGES}/{libraries[-1].relative_to(packages)}"
            variables["PYTHONPATH"] = ":".join(filter(None, [inside, variables.get("PYTHONPATH")]))
        return variables

    def _shown(self) -> tuple[str, ...]:
        return () if self._options.wheels is None else (str(self._options.wheels),)


def pip_variables(options: PlaceOptions, target: str) -> dict[str, str]:
    """Where pip installs, and where it looks for packages."""
    variables = {"PYTHONUSERBASE": target, "PIP_USER": "1", "PIP_BREAK_SYSTEM_PACKAGES": "1"}
    if options.wheels is not None:
        return {**variables, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(options.wheels)}
    return variables if options.network == "task" else {**variables, "PIP_NO_INDEX": "1"}


def _lay_uv(wheels: Path, packages: Path) -> dict[str, str]:
    """Puts uv and uvx, which many tests install from the network, where tests find commands; its variables.

    Nothing if `wheels` has no wheel of uv.
    """
    for wheel in sorted(wheels.glob("uv-[0-9]*.whl"), reverse=True):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if re.fullmatch(r"uv-[^/]+\.data/scripts/uvx?", name):
                    target = packages / "bin" / name.rpartition("/")[2]
                    target.parent.mkdir(exist_ok=True)
                    target.write_bytes(archive.read(name))
                    target.chmod(0o755)
        # Not the cache of the agent's user, which may hold packages of its own.
        private = {f"UV_{name}_DIR": f"{_TEST_PACKAGES}/uv/{name.lower()}" for name in ("CACHE", "TOOL")}
        sources = {"UV_OFFLINE": "1", "UV_FIND_LINKS": str(wheels), "UV_PYTHON_DOWNLOADS": "never"}
        return {**private, **sources}
    return {}


async def _copy(sandbox: Sandbox, environment: Path, action: Copy) -> None:
    """COPY as docker does it: the content of folders, files by name, patterns."""
    target = action.target.rstrip("/") or "/"
    if action.text is not None:
        await sandbox.write_file(target, action.text.encode())
    matches: list[Path] = []
    for pattern in action.sources:
        found_paths = sorted(environment.glob(pattern)) if pattern not in (".", "./") else [environment]
        if not found_paths:
            raise TaskError(f"environment/Dockerfile: COPY {pattern}: there is no such file in environment.")
        matches += found_paths
    for path in matches:
        if path.is_dir() and not path.is_symlink():
            await put_tree(sandbox, path, target)
        elif action.target.endswith("/") or len(matches) > 1:
            await _put_file(sandbox, path, posixpath.join(target, path.name))
        else:
            is_folder = (await sandbox.run(f"test -d {shlex.quote(target)}", cwd="/")).exit_code == 0
            await _put_file(sandbox, path, posixpath.join(target, path.name) if is_folder else target)
    if action.mode is not None:
        await sandbox.run(f"chmod -R {action.mode} -- {shlex.quote(target)}", cwd="/")


async def _put_file(sandbox: Sandbox, path: Path, target: str) -> None:
    await sandbox.write_file(target, await asyncio.to_thread(path.read_bytes))
    mode = path.stat().st_mode & 0o777 | 0o600
    await sandbox.run(f"chmod {mode:o} -- {shlex.quote(target)}", cwd="/")


@dataclass(frozen=True)
class BubblewrapPlace:
    settings: SandboxSettings
    options: PlaceOptions
    machine: Machine
    built: BuiltRoot
    root: TaskRoot
    folder: Path
    workdir: str

    @property
    def variables(self) -> dict[str, str]:
        return {"HOME": "/root", **self.built.variables, **self.machine.variables}

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
        nothing = self.folder / "nothing"
        nothing.mkdir(exist_ok=True)
        nothing.chmod(0o755)
        mounts = [Mount(nothing, VERIFIER_LOGS, False)]
        if solution is not None:
            copy = self.folder / f"solution-{new_id()}"
            await asyncio.to_thread(copy_for_sandbox, [solution], copy)
            mounts.append(Mount(copy, SOLUTION, True))
        return await self._open(mounts, variables, network, timeout_s, shown_paths)

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
        copy = self.folder / f"tests-{new_id()}"
        await asyncio.to_thread(copy_for_sandbox, tests, copy)
        logs.mkdir()
        give_to_sandbox(logs)
        packages = self.folder / f"packages-{new_id()}"
        packages.mkdir()
        uv = (
            {}
            if self.options.wheels is None
            else await asyncio.to_thread(_lay_uv, self.options.wheels, packages)
        )
        give_to_sandbox(packages)
        targets = {VERIFIER_LOGS: logs, TESTS: copy, _TEST_PACKAGES: packages}
        mounts = [Mount(source, target, True) for target, source in targets.items()]
        # Not the user's folder of the agent: what it installed there runs code in every Python that starts.
        path = {"PATH": f"{self.variables['PATH']}:{_TEST_PACKAGES}/bin"}
        extra = {**pip_variables(self.options, _TEST_PACKAGES), **uv, **path, **variables}
        shown_paths = () if self.options.wheels is None else (str(self.options.wheels),)
        return await self._open(mounts, extra, network, timeout_s, shown_paths)

    async def _open(
        self,
        mounts: Sequence[Mount],
        variables: Mapping[str, str],
        network: NetworkMode,
        timeout_s: float,
        shown_paths: Sequence[str],
    ) -> Sandbox:
        logs = [
            Mount(self.root.folder / ".logs" / name, f"/logs/{name}", True) for name in ("agent", "artifacts")
        ]
        packages = [Mount(self.built.packages, _PACKAGES, False)]
        workspace = self.root.workspace(
            {**self.variables, **variables}, mounts=[*logs, *packages, *mounts], shown_paths=shown_paths
        )
        settings = limited(self.settings, self.machine, self.options, network, timeout_s)
        sandbox = await BubblewrapSandbox.open(settings, workspace)
        return await work_in(sandbox, self.workdir)

    async def take(self, artifacts: Sequence[Artifact], source_place: Place) -> None:
        assert isinstance(source_place, BubblewrapPlace), "a task has one kind of place"
        tree = source_place.root
        mounts = [Mount(tree.folder / top[1:], f"{_AGENT_FILES}{top}", False) for top in tree.tops]
        mounts.append(Mount(tree.folder / ".logs", f"{_AGENT_FILES}/logs", False))
        sandbox = await self._open(mounts, {}, "no-network", 600, ())
        try:
            for artifact in artifacts:
                source, target = (
                    shlex.quote(_AGENT_FILES + artifact.source),
                    shlex.quote(artifact.destination),
                )
                folder = shlex.quote(posixpath.dirname(artifact.destination))
                command = (
                    f"[ -e {source} ] || [ -L {source} ] || exit 0; "
                    f"mkdir -p -- {folder} && cp -aT --no-preserve=ownership -- {source} {target}"
                )
                ended = await sandbox.run(command, cwd="/", timeout_s=600)
                if ended.exit_code:
                    raise TaskError(f"artifacts: {artifact.source}: {ended.output.strip()[-200:]}.")
        finally:
            await sandbox.close()

    async def close(self) -> None:
        self.built.lock.release()
        await asyncio.to_thread(self.root.remove)
        with suppress(FileNotFoundError):
            await asyncio.to_thread(remove_tree, self.folder)
