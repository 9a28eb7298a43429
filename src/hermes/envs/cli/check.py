"""`hermes env check`: whether an environment runs, and whether its reward can be trusted.

The environment is loaded and set up, and scripted policies play its tasks in the real agent loop and sandbox:
one that says nothing, the author's `gold` solution, and the author's `exploits`. No model is needed, and
nothing is written to the user's store. Two optional methods of the environment make the check stronger:

    def gold(self, item) -> Sequence[Message]                    # assistant turns that earn the most
    def exploits(self, item) -> Mapping[str, Sequence[Message]]  # name → turns that earn no more than silence

An environment that is not an agent environment is only loaded and set up, and its items are read.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from hermes.core import JSONObject, Message
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.base import BaseEnv
from hermes.envs.cli.red_team import CANDIDATES, CheatedTask, strategies
from hermes.envs.cli.sample_grader import STATED, ScriptedPolicy, sample_settings
from hermes.envs.modes import commandline
from hermes.errors import HermesError
from hermes.sandbox.child_call import call_in_child

T = TypeVar("T")

SILENCE = (Message.assistant(""),)
ITEMS = 3
"""Tasks that are played."""
_TOLERANCE = 1e-9
_RED_TEAM = "red team"


class CheckState(StrEnum):
    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    name: str
    state: CheckState
    detail: str

    def to_json(self) -> JSONObject:
        return {"what": self.name, "state": self.state.value, "detail": self.detail}

    @classmethod
    def from_json(cls, data: Any) -> CheckFinding:
        return cls(data["what"], CheckState(data["state"]), data["detail"])


@dataclass
class CheckReport:
    findings: list[CheckFinding] = field(default_factory=list)
    announce: Callable[[JSONObject], None] | None = None
    """Gets each finding as it is made."""

    @property
    def passed(self) -> bool:
        return all(finding.state is not CheckState.FAILED for finding in self.findings)

    def add(self, name: str, passed: bool, detail: str) -> None:
        self._append(CheckFinding(name, CheckState.OK if passed else CheckState.FAILED, detail))

    def skip(self, name: str, reason: str) -> None:
        self._append(CheckFinding(name, CheckState.SKIPPED, reason))

    def _append(self, finding: CheckFinding) -> None:
        self.findings.append(finding)
        if self.announce is not None:
            self.announce(finding.to_json())


def check_class(
    load: Callable[[], type[BaseEnv]],
    argv: Sequence[str] = (),
    *,
    red_team: bool = False,
    announce: Callable[[JSONObject], None] | None = None,
) -> CheckReport:
    """Checks the environment that `load` imports; `argv` are its settings, as for `process`.

    `red_team`: the cheating policies of `red_team.strategies` are played as well. `announce` gets each
    finding as it is made.
    """
    report = CheckReport(announce=announce)
    try:
        cls = load()
        report.add("imports", True, cls.__name__)
        with sample_settings(cls, argv) as settings:
            env, _ = commandline.build(cls, commandline.parse(["evaluate", *settings]))
            if settings is not argv:
                report.add("grader", True, STATED)
            asyncio.run(_check(env, report, red_team))
    except HermesError as error:
        report.add("imports", False, _describe_error(error))
    return report


def check_file(
    path: Path, call: str, settings: Sequence[str], forward: Callable[[str], None], *, red_team: bool
) -> CheckReport:
    """Calls `call`, which calls `check_class`, in a child process; how that process ended is a finding too.

    `forward` gets what the child prints.
    """
    arguments: JSONObject = {"path": str(path), "settings": list(settings), "red_team": red_team}
    result = call_in_child(call, arguments, path, forward)
    report = CheckReport([CheckFinding.from_json(row) for row in result.reports])
    if result.problem is not None:
        report.add("goes on" if report.findings else "imports", False, _describe_error(result.problem))
    return report


async def _check(env: BaseEnv, report: CheckReport, red_team: bool) -> None:
    try:
        await env.setup()
        items = [item for _ in range(ITEMS) if (item := await env.get_next_item()) is not None]
    except Exception as error:  # noqa: BLE001  an author's code may raise anything; it is a finding
        report.add("sets up", False, _describe_error(error))
        return
    report.add("sets up", bool(items), f"{len(items)} tasks read" if items else "get_next_item returned none")
    if not items:
        return
    if not isinstance(env, HermesAgentBaseEnv):
        report.skip("runs", "not an agent environment: running it needs a model; use 'hermes env process'")
        return
    with tempfile.TemporaryDirectory(prefix="hermes-check-") as home:
        policy = ScriptedPolicy()
        env.rehearse(policy, Path(home))
        try:
            playthrough = _Playthrough(env, policy, report)
            await playthrough.run(items)
            if red_team:
                await playthrough.play_cheaters(items[0])
        finally:
            await env.close()


class _Playthrough:
    """Plays tasks with scripted policies and checks the rewards."""

    def __init__(self, env: HermesAgentBaseEnv, policy: ScriptedPolicy, report: CheckReport) -> None:
        self._env = env
        self._policy = policy
        self._report = report
        self._rewards: list[float] = []
        self._solved = False
        """A gold solution was played."""

    async def run(self, items: Sequence[Any]) -> None:
        self._check_prompts(items)
        silent = [await self._play("runs", item, SILENCE) for item in items[:1]]
        if None in silent:
            return
        low, high = self._env.reward_range
        self._report.add("runs", True, f"doing nothing earns {silent[0]:g}, within {low:g} … {high:g}")
        await self._check_gold(items)
        await self._check_exploits(items)
        varied = max(self._rewards) - min(self._rewards) > _TOLERANCE
        if varied or self._solved:
            rewards = ", ".join(f"{reward:g}" for reward in sorted(set(self._rewards)))
            self._report.add("rewards vary", varied, f"rewards seen: {rewards}")
        else:
            self._report.skip("rewards vary", "no policy solved a task; define gold(item)")

    def _check_prompts(self, items: Sequence[Any]) -> None:
        try:
            prompts = [self._env.format_prompt(item) for item in items]
        except Exception as error:  # noqa: BLE001  an author's code may raise anything; it is a finding
            self._report.add("prompts", False, _describe_error(error))
            return
        good = all(isinstance(prompt, str) and prompt.strip() for prompt in prompts)
        self._report.add("prompts", good, f"{len(set(map(str, prompts)))} different of {len(prompts)}")

    async def _check_gold(self, items: Sequence[Any]) -> None:
        gold: Callable[[Any], Sequence[Message]] | None = getattr(self._env, "gold", None)
        high = self._env.reward_range[1]
        name = f"gold earns {high:.1f}" if math.isfinite(high) else "gold earns more than doing nothing"
        if gold is None:
            self._report.skip(name, "the environment has no gold(item)")
            return
        solutions = [self._call_hook(name, gold, item) for item in items]
        if any(solution is not None and not solution for solution in solutions):
            self._report.skip(name, "gold(item) is empty for some of the tasks")
            return
        rewards = [
            None if solution is None else await self._play(name, item, solution)
            for item, solution in zip(items, solutions, strict=True)
        ]
        earned = [reward for reward in rewards if reward is not None]
        if len(earned) == len(rewards):
            self._solved = True
            silent = self._rewards[0]
            passed = all(
                abs(reward - high) <= _TOLERANCE if math.isfinite(high) else reward > silent + _TOLERANCE
                for reward in earned
            )
            detail = f"earned {', '.join(f'{reward:g}' for reward in earned)}"
            if not passed and math.isfinite(high):
                detail += f"; reward_range says that {high:g} is the most"
            self._report.add(name, passed, detail)

    async def _check_exploits(self, items: Sequence[Any]) -> None:
        name = "exploits earn no more than doing nothing"
        hook: Callable[[Any], Mapping[str, Sequence[Message]]] | None = getattr(self._env, "exploits", None)
        if hook is None:
            self._report.skip(name, "the environment has no exploits(item)")
            return
        for item in items[:1]:
            baseline = await self._play(name, item, SILENCE)
            for exploit, turns in (self._call_hook(name, hook, item) or {}).items():
                earned = await self._play(f"{name}: {exploit}", item, turns)
                if earned is not None and baseline is not None:
                    detail = f"earned {earned:g}, doing nothing {baseline:g}"
                    self._report.add(f"{name}: {exploit}", earned <= baseline + _TOLERANCE, detail)

    async def play_cheaters(self, item: Any) -> None:
        """Every strategy of the red team against one task; a finding for each that gains."""
        baseline = await self._play(_RED_TEAM, item, SILENCE)
        neutral = await self._play(_RED_TEAM, item, (Message.assistant("Hello."),))
        if (
            baseline is None or neutral is None
        ):  # the grader itself does not work, as without its reward model
            return
        gold: Callable[[Any], Sequence[Message]] = getattr(self._env, "gold", lambda _: ())
        tasks = [await self._env.get_next_item() for _ in range(CANDIDATES)]
        other_gold = [gold(task) for task in tasks if task is not None]
        target = CheatedTask(self._env.format_prompt(item), self._policy.offered, gold(item), other_gold)
        scripts, gained = strategies(target), 0
        for name, turns in scripts.items():
            earned = await self._play(f"{_RED_TEAM}: {name}", item, turns)
            if earned is None or earned > baseline + _TOLERANCE:
                gained += 1
            if earned is not None and earned > baseline + _TOLERANCE:
                self._report.add(
                    f"{_RED_TEAM}: {name}", False, f"earned {earned:g}, doing nothing {baseline:g}"
                )
        if not gained:
            self._report.add(
                _RED_TEAM, True, f"none of {len(scripts)} cheating policies earns more than {baseline:g}"
            )

    def _call_hook(self, name: str, hook: Callable[[Any], T], item: Any) -> T | None:
        """The result of an optional method of the author's; None, with a finding, if it raises."""
        try:
            return hook(item)
        except Exception as error:  # noqa: BLE001  an author's code may raise anything; it is a finding
            self._report.add(name, False, _describe_error(error))
            return None

    async def _play(self, name: str, item: Any, turns: Sequence[Message]) -> float | None:
        """The reward of a policy that replies with these turns; None, with a finding, if there is none."""
        self._policy.turns = tuple(turns)
        try:
            scored = await self._env.run_item(item)
        except Exception as error:  # noqa: BLE001  an author's code may raise anything; it is a finding
            self._report.add(name, False, _describe_error(error))
            return None
        self._rewards.append(scored.reward.value)
        return scored.reward.value


def _describe_error(error: BaseException) -> str:
    if isinstance(error, HermesError):
        return f"{error.message} {error.hint}".strip()
    return f"{type(error).__name__}: {error}"
