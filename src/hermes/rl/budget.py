"""The budget of an agent's task: training steps, wall clock and money.

The limits are settings of a person (rl.max_steps, rl.max_hours, rl.max_usd). They apply to all runs and tests
that one task of the agent starts, together: a run that has not ended reserves all that was left when it was
started, so that two runs cannot spend the same budget. Money is the price of a Tinker service (rl.price) for
the tokens that the run's trainer counts, and the maximum cost of a test. A run with unknown costs is refused:
an environment that uses a paid model can only be started by a person.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermes.config.settings import ServicePrice
from hermes.core.clock import now_ms
from hermes.disk.files import ensure_dir, read_text
from hermes.errors import UsageError
from hermes.rl.run import RlRun, all_runs, last_step
from hermes.rl.service import service_of
from hermes.safety.access import leads_to_loopback
from hermes.training.service.token_meter import TokenCounts, read_tokens

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.config.settings import RlSettings
    from hermes.core import JSONObject
    from hermes.rl.config.resolve import Resolved

_PERSON = "only a person can raise it: hermes config set rl.{}"


@dataclass(frozen=True, slots=True)
class RemainingBudget:
    """The rest of the budget of a task. None: no limit."""

    steps: int | None
    hours: float | None
    usd: float | None


def remaining(config: Config, task: str) -> RemainingBudget:
    """The task's budget minus what its runs and tests have spent or reserved."""
    limits = config.settings.rl
    runs = [run for run in all_runs(config.home) if run.config().run.task == task]
    charged = [row for row in _charged(config) if row["task"] == task]

    def left(limit: float | None, reserved: Callable[[RlRun], float], name: str) -> float | None:
        return limit and limit - sum(map(reserved, runs)) - sum(row.get(name, 0) for row in charged)

    steps = left(limits.max_steps, _reserved_steps, "steps")
    return RemainingBudget(
        None if steps is None else int(steps),
        left(limits.max_hours, _reserved_hours, "hours"),
        left(limits.max_usd, _reserved_usd, "usd"),
    )


def grant(config: Config, resolved: Resolved, task: str) -> RemainingBudget:
    """The limits of a run of the agent; UsageError if it is not enough."""
    limits, rest = config.settings.rl, remaining(config, task)
    _check_time(limits, rest, "total_steps", int(resolved.values["env.total_steps"]))
    if rest.usd is None:
        return rest
    if (paid := _paid_endpoint(config, resolved)) is not None:
        raise UsageError(
            f"{paid} may cost money, and what it costs is not counted against the budget of "
            f"${limits.max_usd:g}",
            "a person can start this run, or state a price of 0 for it in prices",
        )
    if service_of(limits, config.environ) is None:
        return RemainingBudget(rest.steps, rest.hours, None)
    if limits.price is None:
        raise UsageError(
            f"there is a budget of ${limits.max_usd:g}, and the price of the service is unknown",
            "a person can state it, in US dollars per million tokens: hermes config set rl.price "
            "'{prefill: …, sample: …, train: …}'",
        )
    if rest.usd <= 0:
        raise UsageError(f"the budget of ${limits.max_usd:g} is used up", _PERSON.format("max_usd"))
    return rest


def _check_time(limits: RlSettings, rest: RemainingBudget, field: str, steps: int) -> None:
    if rest.steps is not None and steps > rest.steps:
        raise UsageError(
            f"{field} is {steps}, and {max(0, rest.steps)} are left of the budget of {limits.max_steps} "
            "steps",
            _PERSON.format("max_steps"),
        )
    if rest.hours is not None and rest.hours <= 0:
        raise UsageError(f"the budget of {limits.max_hours:g} h is used up", _PERSON.format("max_hours"))


def training_allowance(config: Config, task: str, steps: int) -> float | None:
    """The hours that a training on stored rows may take; None: no limit. UsageError if it is not in the
    budget."""
    limits, rest = config.settings.rl, remaining(config, task)
    _check_time(limits, rest, "max_steps", steps)
    service = service_of(limits, config.environ)
    if rest.usd is not None and service is not None and not leads_to_loopback(service):
        raise UsageError(
            f"there is a budget of ${limits.max_usd:g}, and what {service} costs is not counted here",
            "a person can start this training",
        )
    return rest.hours


def charge_training(config: Config, task: str, steps: int, hours: float) -> None:
    """Counts a training on stored rows against the task's budget."""
    _charge(config, {"task": task, "usd": 0.0, "steps": steps, "hours": hours})


def cost_usd(tokens: TokenCounts, price: JSONObject | None) -> float:
    """The price of the tokens at the service; 0 if it has none."""
    if price is None:
        return 0.0
    micro_usd = (
        tokens.prefill * price["prefill"] + tokens.sampled * price["sample"] + tokens.trained * price["train"]
    )
    return float(micro_usd) / 1e6


def spent_usd(run: RlRun) -> float:
    """The cost of the run so far."""
    return cost_usd(read_tokens(run.folder), run.config().run.price)


def charge_test(
    config: Config, resolved: Resolved, task: str, models: Sequence[str], completions: int
) -> None:
    """Charges the maximum cost of a test before it runs. UsageError if that is more than is left."""
    limits, rest = config.settings.rl, remaining(config, task)
    if rest.usd is None:
        return
    usd = sum(_max_test_usd(config, resolved, name, completions) for name in models)
    if usd > rest.usd:
        raise UsageError(
            f"the test may cost up to ${usd:.2f}, and ${max(0.0, rest.usd):.2f} are left of the budget of "
            f"${limits.max_usd:g}",
            "fewer or cheaper models, steps or completions cost less",
        )
    if usd:
        _charge(config, {"task": task, "usd": usd})


def _max_test_usd(config: Config, resolved: Resolved, name: str, completions: int) -> float:
    """The cost if every model call of every rollout has the maximum length."""
    from hermes.models.usage import price_of
    from hermes.rl.checks.inference_test import is_local, priced_name

    if is_local(name):
        return 0.0
    price = price_of(config.settings, priced_name(config, name))
    if price is None:
        raise UsageError(
            f"there is a budget of ${config.settings.rl.max_usd:g}, and the price of {name} is unknown",
            f"a person can state it in prices of config.yaml: {priced_name(config, name)}",
        )
    calls = completions * int(resolved.values.get("env.max_agent_turns") or 1)
    return calls * int(resolved.values["env.max_token_length"]) * (price.input + price.output) / 1e6


def _paid_endpoint(config: Config, resolved: Resolved) -> str | None:
    """A field of the environment that names a model or address that may cost money."""
    from hermes.models.usage import price_of

    for name, value in resolved.section("env").items():
        if not isinstance(value, str) or not value or name == "rollout_server_url":
            continue
        if name.endswith("_model"):
            price = price_of(config.settings, value)
            if price is None or price.input or price.output:
                return f"env.{name} {value}"
        elif name.endswith("_url") and not leads_to_loopback(value):
            return f"env.{name} {value}"
    return None


def _reserved_steps(run: RlRun) -> int:
    return last_step(run) if run.status().state.ended else run.config().env.total_steps


def _reserved_hours(run: RlRun) -> float:
    status = run.status()
    if status.ended_at_ms is not None:
        return (status.ended_at_ms - status.started_at_ms) / 3.6e6
    return run.config().run.max_hours or 0.0


def _reserved_usd(run: RlRun) -> float:
    granted = run.config().run.max_usd or 0.0
    return spent_usd(run) if run.status().state.ended else max(granted, spent_usd(run))


def _charge(config: Config, row: JSONObject) -> None:
    path = ensure_dir(config.home / "rl") / "tests.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**row, "at_ms": now_ms()}) + "\n")


def _charged(config: Config) -> Iterator[JSONObject]:
    """The expenses of tests, and of trainings on stored rows."""
    text = read_text(config.home / "rl" / "tests.jsonl") or ""
    return (json.loads(line) for line in text.splitlines())


def recorded_limits(config: Config, granted: RemainingBudget | None) -> JSONObject:
    """The limits and the price that are recorded in the configuration of a run: an engine here costs $0."""
    price, service = config.settings.rl.price, service_of(config.settings.rl, config.environ)
    if service is None or (price is None and leads_to_loopback(service)):
        price = ServicePrice(prefill=0, sample=0, train=0)
    return {
        "max_hours": granted.hours if granted else None,
        "max_usd": granted.usd if granted else None,
        "price": price.model_dump() if price else None,
    }
