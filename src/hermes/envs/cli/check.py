"""`hermes env check`: does an environment run, and does its reward mean what it says?

The environment is loaded and set up, and made-up policies play its tasks through the real agent loop and
sandbox: one that says nothing, the author's `gold` solution, and the author's `exploits`. No model is needed,
and nothing is left in the user's store. Two optional methods of the environment make the check worth more:

    def gold(self, item) -> Sequence[Message]                    # assistant turns that deserve 1.0
    def exploits(self, item) -> Mapping[str, Sequence[Message]]  # name → turns that deserve no more than none

An environment that is no agent environment is only loaded, set up and asked for items.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from hermes.core import JSONObject, Message
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.scripted import ScriptedPolicy
from hermes.envs.base import BaseEnv
from hermes.envs.modes import commandline
from hermes.errors import HermesError

T = TypeVar("T")

SILENCE = (Message.assistant(""),)
ITEMS = 3
"""Tasks that are looked at."""
_SAME = 1e-9


class CheckState(StrEnum):
    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    what: str
    state: CheckState
    detail: str

    def to_json(self) -> JSONObject:
        return {"what": self.what, "state": self.state.value, "detail": self.detail}


@dataclass
class CheckReport:
    findings: list[CheckFinding] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(finding.state is not CheckState.FAILED for finding in self.findings)

    def add(self, what: str, good: bool, detail: str) -> None:
        self.findings.append(CheckFinding(what, CheckState.OK if good else CheckState.FAILED, detail))

    def skip(self, what: str, why: str) -> None:
        self.findings.append(CheckFinding(what, CheckState.SKIPPED, why))


def check_class(load: Callable[[], type[BaseEnv]], argv: Sequence[str] = ()) -> CheckReport:
    """Checks the environment that `load` imports; `argv` are its settings, as for `process`."""
    report = CheckReport()
    try:
        cls = load()
        report.add("imports", True, cls.__name__)
        env, _ = commandline.build(cls, commandline.parse(["evaluate", *argv]))
    except HermesError as error:
        report.add("imports", False, _said(error))
        return report
    asyncio.run(_check(env, report))
    return report


async def _check(env: BaseEnv, report: CheckReport) -> None:
    try:
        await env.setup()
        items = [item for _ in range(ITEMS) if (item := await env.get_next_item()) is not None]
    except Exception as error:  # noqa: BLE001  whatever an author's code does is a finding
        report.add("sets up", False, _said(error))
        return
    report.add("sets up", bool(items), f"{len(items)} tasks taken" if items else "get_next_item gave none")
    if not items:
        return
    if not isinstance(env, HermesAgentBaseEnv):
        report.skip("runs", "not an agent environment: running it needs a model; use 'hermes env process'")
        return
    with tempfile.TemporaryDirectory(prefix="hermes-check-") as home:
        policy = ScriptedPolicy()
        env.rehearse(policy, Path(home))
        try:
            await _Play(env, policy, report).all(items)
        finally:
            await env.close()


class _Play:
    """Plays tasks with made-up policies and judges the rewards."""

    def __init__(self, env: HermesAgentBaseEnv, policy: ScriptedPolicy, report: CheckReport) -> None:
        self._env = env
        self._policy = policy
        self._report = report
        self._rewards: list[float] = []
        self._solved = False
        """A gold solution was played."""

    async def all(self, items: Sequence[Any]) -> None:
        self._prompts(items)
        silent = [await self._reward("runs", item, SILENCE) for item in items[:1]]
        if None in silent:
            return
        low, high = self._env.reward_range
        self._report.add("runs", True, f"doing nothing earns {silent[0]:g}, within {low:g} … {high:g}")
        await self._gold(items)
        await self._exploits(items)
        varied = max(self._rewards) - min(self._rewards) > _SAME
        if varied or self._solved:
            seen = ", ".join(f"{value:g}" for value in sorted(set(self._rewards)))
            self._report.add("rewards vary", varied, f"rewards seen: {seen}")
        else:
            self._report.skip("rewards vary", "no policy solved a task; give the environment gold(item)")

    def _prompts(self, items: Sequence[Any]) -> None:
        try:
            prompts = [self._env.format_prompt(item) for item in items]
        except Exception as error:  # noqa: BLE001  whatever an author's code does is a finding
            self._report.add("prompts", False, _said(error))
            return
        good = all(isinstance(prompt, str) and prompt.strip() for prompt in prompts)
        self._report.add("prompts", good, f"{len(set(map(str, prompts)))} different of {len(prompts)}")

    async def _gold(self, items: Sequence[Any]) -> None:
        gold: Callable[[Any], Sequence[Message]] | None = getattr(self._env, "gold", None)
        if gold is None:
            self._report.skip("gold earns 1.0", "the environment has no gold(item)")
            return
        what = "gold earns 1.0"
        turns = [self._asked(what, gold, item) for item in items]
        if any(said is not None and not said for said in turns):
            self._report.skip(what, "gold(item) is empty for some of the tasks")
            return
        earned = [
            None if said is None else await self._reward(what, item, said)
            for item, said in zip(items, turns, strict=True)
        ]
        values = [value for value in earned if value is not None]
        if len(values) == len(earned):
            self._solved = True
            good = all(abs(value - 1.0) <= _SAME for value in values)
            self._report.add(what, good, f"earned {', '.join(f'{value:g}' for value in values)}")

    async def _exploits(self, items: Sequence[Any]) -> None:
        what = "exploits earn no more than doing nothing"
        hook: Callable[[Any], Mapping[str, Sequence[Message]]] | None = getattr(self._env, "exploits", None)
        if hook is None:
            self._report.skip(what, "the environment has no exploits(item)")
            return
        for item in items[:1]:
            nothing = await self._reward(what, item, SILENCE)
            for name, turns in (self._asked(what, hook, item) or {}).items():
                earned = await self._reward(f"{what}: {name}", item, turns)
                if earned is not None and nothing is not None:
                    detail = f"earned {earned:g}, doing nothing {nothing:g}"
                    self._report.add(f"{what}: {name}", earned <= nothing + _SAME, detail)

    def _asked(self, what: str, hook: Callable[[Any], T], item: Any) -> T | None:
        """What an optional method of the author's gives; None, with a finding, if it raises."""
        try:
            return hook(item)
        except Exception as error:  # noqa: BLE001  whatever an author's code does is a finding
            self._report.add(what, False, _said(error))
            return None

    async def _reward(self, what: str, item: Any, turns: Sequence[Message]) -> float | None:
        """What a policy that says these turns earns; None, with a finding, if there is no reward."""
        self._policy.turns = tuple(turns)
        try:
            scored = await self._env.run_item(item)
        except Exception as error:  # noqa: BLE001  whatever an author's code does is a finding
            self._report.add(what, False, _said(error))
            return None
        self._rewards.append(scored.reward.value)
        return scored.reward.value


def _said(error: BaseException) -> str:
    if isinstance(error, HermesError):
        return f"{error.message} {error.hint}".strip()
    return f"{type(error).__name__}: {error}"
