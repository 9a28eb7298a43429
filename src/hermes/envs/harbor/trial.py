"""One trial of a task: its files, the agent's sandboxes, and the verification out of the agent's reach.

Nobody steals a reward: when tests start, every process of the agent has been ended, `/tests` and
`/logs/verifier` are fresh, the verifier's sandbox is a new one with an environment of its own, and what it
writes was never writable for the agent. What a shared verifier cannot promise is the integrity of the files
that the agent may change and the tests use, such as a virtual environment in /app: a task that needs that
has a separate verifier, which gets the artifacts and nothing else.

A trial that was killed leaves a folder; `sweep` removes it at the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hermes.core import new_id
from hermes.disk.files import make_private_dirs
from hermes.disk.trees import remove_tree
from hermes.envs.harbor.place import VERIFIER_LOGS, Place, put_tree
from hermes.envs.harbor.reward import (
    MOST_REWARD_BYTES,
    REWARD_JSON,
    REWARD_TEXT,
    combine,
    reaches,
    read_reward,
)
from hermes.envs.harbor.schema import AgentPart, Artifact, Healthcheck, Machine, NetworkMode, VerifierPart
from hermes.envs.harbor.task import Stage, Task
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.errors import SandboxError
from hermes.sandbox.files import read_inside
from hermes.store.owner import is_alive, this_process

if TYPE_CHECKING:
    from hermes.sandbox.base import CommandResult, Sandbox

DEFAULT_AGENT_S = 3600.0
"""Time of an agent whose task states none."""
_TAIL_CHARS = 400


class Places(Protocol):
    """Opens places for trials."""

    def check(self, task: Task) -> None: ...
    async def open(self, environment: Path, machine: Machine, folder: Path) -> Place: ...

    def remove_built(self, environment: Path, machine: Machine) -> None:
        """Removes what was kept of an image, unless it is in use."""
        ...


@dataclass
class Trial:
    """Stages are played one after another: `start`, the agent's sandbox, `score`."""

    task: Task
    places: Places
    place: Place
    folder: Path
    rewards: list[RewardResult] = field(default_factory=list)

    @property
    def stage(self) -> Stage | None:
        """The one to play; None: all have been played, or one did not reach its least reward."""
        played = len(self.rewards)
        if played:
            part = self.task.stages[played - 1].part
            if part is not None and not reaches(self.rewards[-1], part.min_reward):
                return None
        return self.task.stages[played] if played < len(self.task.stages) else None

    @property
    def agent(self) -> AgentPart:
        """The limits of the agent in the stage to play."""
        part = None if self.stage is None else self.stage.part
        return self.task.file.agent if part is None else part.agent

    @property
    def timeout_s(self) -> float:
        return self.agent.timeout_s or self.task.file.agent.timeout_s or DEFAULT_AGENT_S

    async def start(self) -> None:
        """Lays out the files of the stage, and waits until the task's health check passes."""
        stage = self.stage
        assert stage is not None, "there is a stage to play"
        check = self.task.file.machine.healthcheck
        if stage.part is not None and stage.part.healthcheck is not None:
            check = stage.part.healthcheck
        if stage.files is None and check is None:
            return
        sandbox = await self.open_agent()
        try:
            if stage.files is not None:
                await put_tree(sandbox, stage.files, self.place.workdir)
            if check is not None:
                await _wait_healthy(sandbox, check)
        finally:
            await sandbox.close()

    async def open_agent(self, shown_paths: Sequence[str] = (), *, with_solution: bool = False) -> Sandbox:
        """A sandbox of the agent; `with_solution`: with /solution and its variables, for the reference."""
        stage, machine = self.stage, self.task.file.machine
        return await self.place.open_agent(
            variables=self.task.file.solution_variables if with_solution else {},
            network=self.agent.network or machine.network,
            timeout_s=self.timeout_s,
            user=self.agent.user,
            shown_paths=shown_paths,
            solution=stage.solution if with_solution and stage is not None else None,
        )

    async def solve(self) -> CommandResult:
        """Plays the stage with its reference solution."""
        sandbox = await self.open_agent(with_solution=True)
        try:
            return await sandbox.run("bash /solution/solve.sh", timeout_s=self.timeout_s)
        finally:
            await sandbox.close()

    async def score(self) -> RewardResult:
        """The reward of the stage; every process of the agent must have been ended.

        GraderError: the tests gave none, or did not end in time.
        """
        stage = self.stage
        assert stage is not None, "there is a stage to score"
        part = self.task.verifier_of(stage)
        await self._collect(part)
        if part.separate:
            reward = await self._score_apart(stage, part)
        else:
            reward = await self._run_tests(self.place, stage.tests, part, self.task.file.machine)
        self.rewards.append(reward)
        return reward

    def reward(self) -> RewardResult:
        """The reward of the whole task, once no stage is left to play."""
        return combine(self.rewards, len(self.task.stages), self.task.file.step_rewards)

    async def _collect(self, part: VerifierPart) -> None:
        if not part.collect:
            return
        sandbox = await self.open_agent()
        try:
            for entry in part.collect:
                ended = await sandbox.run(entry.command, timeout_s=entry.timeout_s)
                if ended.exit_code:
                    raise GraderError(f"verifier.collect: {entry.command[:60]}: {_tail(ended)}")
        finally:
            await sandbox.close()

    async def _score_apart(self, stage: Stage, part: VerifierPart) -> RewardResult:
        """In a fresh place that has the artifacts of the agent's and nothing else of it."""
        environment, machine = verifier_image(self.task, stage)
        folder = self.folder / f"verifier-{new_id()}"
        folder.mkdir(mode=0o711)
        site = await self.places.open(environment, machine, folder)
        try:
            declared = (*self.task.file.artifacts, *(stage.part.artifacts if stage.part else ()))
            await site.take([*declared, Artifact("/logs/artifacts", "/logs/artifacts")], self.place)
            return await self._run_tests(site, stage.tests, part, machine)
        finally:
            await site.close()

    async def _run_tests(
        self, site: Place, tests: Sequence[Path], part: VerifierPart, machine: Machine
    ) -> RewardResult:
        logs = self.folder / f"logs-{new_id()}"
        network: NetworkMode = part.network or machine.network
        sandbox = await site.open_verifier(
            tests,
            logs,
            variables=part.variables,
            network=network,
            timeout_s=part.timeout_s,
            user=part.user,
        )
        try:
            ended = await sandbox.run("bash /tests/test.sh", timeout_s=part.timeout_s)
        finally:
            await sandbox.close()
        if ended.timed_out:
            raise GraderError(f"the tests did not end within {part.timeout_s:g} s: {_tail(ended)}")
        texts = [await asyncio.to_thread(_read, logs, name) for name in (REWARD_JSON, REWARD_TEXT)]
        try:
            return replace(read_reward(*texts), detail=_tail(ended))
        except GraderError as error:
            raise GraderError(f"{error.message} tests/test.sh: {_tail(ended)}") from error


def verifier_image(task: Task, stage: Stage) -> tuple[Path, Machine]:
    """The folder and the machine that the place of a separate verifier is built from."""
    own_images = [path for path in stage.tests if (path / "Dockerfile").is_file()]
    machine = task.verifier_of(stage).machine or task.file.machine
    return own_images[-1] if own_images else task.environment, machine


def images(task: Task) -> list[tuple[Path, Machine]]:
    """The same for every place of a trial of the task."""
    apart = [stage for stage in task.stages if task.verifier_of(stage).separate]
    return [(task.environment, task.file.machine), *(verifier_image(task, stage) for stage in apart)]


@asynccontextmanager
async def open_trial(task: Task, places: Places, home: Path) -> AsyncIterator[Trial]:
    """A trial of a task in a place of its own, which is removed at the end of the block.

    TaskError: the task cannot be run here.
    """
    places.check(task)
    folder = trials_folder(home) / f"{this_process().replace(':', '-')}-{new_id()}"
    await asyncio.to_thread(make_private_dirs, folder.parent)
    for path in (folder.parent.parent, folder.parent):
        path.chmod(0o711)  # sandboxes of another user reach the folders in it that they are given
    folder.mkdir(mode=0o711)
    try:
        site = await places.open(task.environment, task.file.machine, folder)
        try:
            yield Trial(task, places, site, folder)
        finally:
            await site.close()
    finally:
        await asyncio.to_thread(remove_tree, folder)


def trials_folder(home: Path) -> Path:
    return home / "harbor" / "trials"


def sweep(home: Path) -> int:
    """Removes the folders of trials whose process has ended; how many."""
    stale = [path for path in _folders(trials_folder(home)) if not is_alive(_owner(path))]
    for path in stale:
        remove_tree(path)
    return len(stale)


def _folders(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _owner(path: Path) -> str:
    pid, _, rest = path.name.partition("-")
    return f"{pid}:{rest.partition('-')[0]}" if pid.isdecimal() else "0:?"


async def _wait_healthy(sandbox: Sandbox, check: Healthcheck) -> None:
    """SandboxError: the task's own check never passes."""
    loop = asyncio.get_running_loop()
    begin_s, failures = loop.time(), 0
    while failures < check.retries:
        ended = await sandbox.run(check.command, timeout_s=check.timeout_s)
        if ended.exit_code == 0:
            return
        failures += loop.time() - begin_s >= check.start_period_s
        await asyncio.sleep(check.interval_s)
    raise SandboxError(f"the task's health check does not pass: {_tail(ended)}")


def _read(logs: Path, name: str) -> str | None:
    try:
        data = read_inside(logs, name, MOST_REWARD_BYTES + 1, VERIFIER_LOGS)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GraderError(f"{name} cannot be read: {error.strerror}.") from error
    if len(data) > MOST_REWARD_BYTES:
        raise GraderError(f"{name} has more than {MOST_REWARD_BYTES} bytes.")
    return data.decode("utf-8", "replace")


def _tail(ended: CommandResult) -> str:
    return ended.output.strip()[-_TAIL_CHARS:] or f"exit code {ended.exit_code}"
