"""Whether tasks are sound: the reference solution must score 1, an agent that does nothing and cheats 0.

Every finished verdict is appended to `HOME/harbor/verdicts.jsonl` under the digest of the task and of what
it ran with: a check that was killed goes on where it was, and a changed task is checked again. An
infrastructure failure is no verdict and is not kept.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import JSONObject
from hermes.disk.appendlog import AppendLog, read_lines
from hermes.disk.files import make_private_dirs
from hermes.envs.harbor.cheats import CHEATS
from hermes.envs.harbor.schema import TaskError
from hermes.envs.harbor.trial import Trial, images, open_trial
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.errors import ConfigError, HermesError

if TYPE_CHECKING:
    from hermes.envs.harbor.dataset import TaskFolder
    from hermes.envs.harbor.places import ChosenPlaces
    from hermes.envs.harbor.task import Task

_TOLERANCE = 1e-9
LEAST_FREE_BYTES = 10 << 30
"""With less left on a disk, what a task was built into is removed once the task has been checked."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of a check about one task."""

    task: str
    digest: str
    place: str = ""
    """Where it ran; empty: it cannot be run here, for the reason `problem`."""
    solution: float | None = None
    """The reward of the reference solution; None: it was not played, or there was none."""
    nothing: float | None = None
    cheats: int | None = None
    """How many cheating agents were played; None: none."""
    problem: str = ""
    """Why it is not sound, in a sentence."""
    options: str = ""
    """The network, bases and wheels that it ran with."""

    @property
    def sound(self) -> bool:
        return not self.problem

    def covers(self, solutions: bool, red_team: bool) -> bool:
        """Whether a check that is asked for all this needs not be made again."""
        played = self.solution is not None and (not red_team or self.cheats is not None)
        return bool(self.place) and (self.problem != "" or not solutions or played)


def usable_tasks(
    folder: TaskFolder, places: ChosenPlaces, verdicts_home: Path | None, *, one_stage: bool = False
) -> tuple[list[Task], dict[str, str]]:
    """The tasks that can run here and have not failed a check, and the reason for each other one, by name.

    `verdicts_home`: where checks have kept their verdicts; None: those are ignored. `one_stage`: without
    tasks of several steps, which a program cannot do. ConfigError: none of the tasks can be used.
    """
    verdicts = {} if verdicts_home is None else read_verdicts(verdicts_home)
    tasks, reasons = [], {bad.name: bad.reason for bad in folder.bad}
    for task in folder.tasks:
        try:
            places.check(task)
            if one_stage and len(task.stages) > 1:
                raise TaskError("steps: a program of yours does a task of one instruction.")
            if (verdict := verdicts.get(task.digest)) is not None and not verdict.sound:
                raise TaskError(f"{verdict.problem} --env.unsound true uses it all the same.")
        except TaskError as error:
            reasons[task.key] = error.message
        else:
            tasks.append(task)
    if not tasks:
        name, reason = next(iter(reasons.items()))
        raise ConfigError(
            f"none of the {len(reasons)} tasks can be used; the first, {name}: {reason}",
            "hermes env check harbor FOLDER lists all of them.",
        )
    return tasks, reasons


async def check_tasks(
    tasks: Sequence[Task],
    places: ChosenPlaces,
    home: Path,
    *,
    solutions: bool,
    red_team: bool = False,
    workers: int = 2,
    again: bool = False,
    least_free_bytes: int = LEAST_FREE_BYTES,
    announce: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """A verdict for each task, in their order; at most `workers` run at one time."""
    known_verdicts = {} if again else read_verdicts(home)
    slots, options = asyncio.Semaphore(workers), str(places.options)

    async def check(task: Task) -> Verdict:
        earlier = known_verdicts.get(task.digest)
        try:
            kind = places.kind_of(task)
        except TaskError as error:
            return Verdict(task.key, task.digest, problem=error.message)
        verdict = Verdict(task.key, task.digest, kind, options=options)
        if not (solutions or red_team):
            return verdict
        is_same = earlier is not None and (earlier.place, earlier.options) == (kind, options)
        if earlier is not None and is_same and earlier.covers(solutions, red_team):
            return replace(earlier, task=task.key)
        async with slots:
            try:
                verdict = await _play(verdict, task, places, home, red_team)
            except TaskError as error:  # its image or its files
                verdict = replace(verdict, problem=error.message)
            except HermesError as error:
                return replace(verdict, problem=error.message)
            finally:
                await asyncio.to_thread(_make_room, task, places, home, least_free_bytes)
        await asyncio.to_thread(_keep, home, verdict)
        return verdict

    async def check_and_announce(task: Task) -> Verdict:
        verdict = await check(task)
        announce(verdict)
        return verdict

    return list(await asyncio.gather(*map(check_and_announce, tasks)))


def _make_room(task: Task, places: ChosenPlaces, home: Path, least_free_bytes: int) -> None:
    """Removes what the task was built into, if a disk is short: that of roots, or that of an engine."""
    free_bytes = min(shutil.disk_usage(path).free for path in (home, "/var/lib"))
    if free_bytes < least_free_bytes:
        for image in images(task):
            places.of(task).remove_built(*image)


async def _play(verdict: Verdict, task: Task, places: ChosenPlaces, home: Path, red_team: bool) -> Verdict:
    """The verdict after the players. HermesError: a place or sandbox failed, which is no verdict."""
    if not task.has_solution:
        verdict = replace(verdict, problem="it has no reference solution (solution/solve.sh).")
    try:
        nothing = await _reward(task, places, home, "true")
        verdict = replace(verdict, nothing=nothing.value)
        if nothing.value > _TOLERANCE:
            return replace(verdict, problem=f"an agent that does nothing earns {nothing.value:g}.")
    except GraderError as error:
        verdict = replace(verdict, problem=f"after an agent that does nothing, {error.message}")
    if task.has_solution:
        try:
            solved = await _reward(task, places, home, None)
        except GraderError as error:
            return replace(verdict, problem=f"after the reference solution, {error.message}")
        verdict = replace(verdict, solution=solved.value)
        if abs(solved.value - 1) > _TOLERANCE:
            problem = f"the reference solution earns {solved.value:g}: {_last_line(solved.detail)}"
            return replace(verdict, problem=problem)
    return await _play_cheats(verdict, task, places, home) if red_team else verdict


async def _play_cheats(verdict: Verdict, task: Task, places: ChosenPlaces, home: Path) -> Verdict:
    for name, command in CHEATS.items():
        try:
            earned = (await _reward(task, places, home, command)).value
        except GraderError:
            continue  # no reward was given
        if earned > (verdict.nothing or 0.0) + _TOLERANCE:
            return replace(verdict, problem=f"an agent that cheats earns {earned:g}: {name}.")
    return replace(verdict, cheats=len(CHEATS))


async def _reward(task: Task, places: ChosenPlaces, home: Path, command: str | None) -> RewardResult:
    """The reward of an agent that runs this command in every step; None: the reference solution."""
    async with open_trial(task, places.of(task), home) as trial:
        while trial.stage is not None:
            await trial.start()
            await (_run(trial, command) if command is not None else trial.solve())
            await trial.score()
        return trial.reward()


async def _run(trial: Trial, command: str) -> None:
    sandbox = await trial.open_agent()
    try:
        await sandbox.run(command, timeout_s=min(trial.timeout_s, 60.0))
        await sandbox.kill_all()
    finally:
        await sandbox.close()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-200:] if lines else ""


def verdicts_path(home: Path) -> Path:
    return home / "harbor" / "verdicts.jsonl"


def read_verdicts(home: Path) -> dict[str, Verdict]:
    """The newest verdict by the digest of its task."""
    path = verdicts_path(home)
    verdicts: dict[str, Verdict] = {}
    for line in read_lines(path) if path.is_file() else ():
        try:
            verdict = Verdict(**json.loads(line))
        except (ValueError, TypeError):
            continue  # cut off, or of another version: it is checked again
        verdicts[verdict.digest] = verdict
    return verdicts


def _keep(home: Path, verdict: Verdict) -> None:
    make_private_dirs(verdicts_path(home).parent)
    with AppendLog(verdicts_path(home)) as log:
        log.append([json.dumps(asdict(verdict))])


def report_json(verdicts: Sequence[Verdict]) -> JSONObject:
    rows = [{**asdict(verdict), "sound": verdict.sound} for verdict in verdicts]
    return {"sound": sum(verdict.sound for verdict in verdicts), "tasks": rows}
