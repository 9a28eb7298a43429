"""Sixty seconds that say whether a run will learn, before it is started.

A few groups are sampled from the untrained policy, scored by the environment, and looked at as the trainer
would: does any group have something to learn from? What is not made in time is left, and the rest is judged.
The suggestions follow from what was measured, by fixed rules; `estimate` has time and memory.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from hermes.config.paths import logs_dir
from hermes.core.files import ensure_dir
from hermes.errors import HermesError
from hermes.rl.checks.estimate import estimate, update_seconds
from hermes.rl.checks.inference_test import TestedServer, is_local, process, read_groups
from hermes.rl.checks.machine import has_gpu
from hermes.rl.service import service_of
from hermes.rl.supervise import ports
from hermes.rl.supervise.engine_process import engine_process
from hermes.training.data.advantages import has_signal
from hermes.training.schedule import default_rl_rate, parameters_of
from hermes.training.service.client import connection

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSONObject
    from hermes.rl.config.resolve import Resolved

GROUPS, SECONDS = 4, 60.0
"""To be sampled, and how long that may take."""
_START_S = 120.0
"""How long the environment may take before it begins to."""
_LOOK_EVERY_S = 0.05
_MUCH_CUT = 0.3
_ALIKE, _WARMER, _HOTTEST = 0.5, 0.2, 1.4
"""Where less than this share of a group's answers differ, a higher temperature may help; by how much."""
_NO_TOKEN = {"HERMES_ENGINE_TOKEN": ""}
"""It listens on loopback, and nobody else is told where."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the untrained policy did."""

    scores: tuple[tuple[float, ...], ...]
    sequence_tokens: float
    """Mean length, prompt included."""
    truncated: float | None
    """Share of rollouts cut off; None where the environment does not tell."""
    tool_errors: float | None
    """Share of tool calls that failed."""
    distinct: float
    """Share of a group's answers that differ from each other, on average."""
    seconds: float


def preflight(
    config: Config, resolved: Resolved, groups: int = GROUPS, seconds: float = SECONDS
) -> JSONObject:
    """Samples, judges, suggests."""
    folder = ensure_dir(logs_dir(config.home) / "rl_training" / "preflight")
    stem = f"{resolved.selection.environment}_{time.time_ns() // 1000}"
    output, log = folder / f"{stem}.jsonl", folder / f"{stem}.log"
    size = min(8, int(resolved.values["env.group_size"]))
    overrides: JSONObject = {"total_steps": groups, "group_size": size, "use_wandb": False}
    engine_log = folder / f"{stem}_engine.log"
    with _policy(config, resolved.model, engine_log) as policy:
        with _appearance_of(output) as begun_s:
            problem = process(resolved, policy.server, overrides, output, log, seconds, _START_S)
        made = read_groups(output)
        if not made:
            raise HermesError(
                f"no group could be sampled: {problem or 'the environment gave none'}",
                f"see {log}; --seconds gives it longer",
            )
        sampled = summarise(made, _last_write_s(output) - begun_s())
        update_s = update_seconds(policy.url, policy.server.name, resolved, made) if policy.own else None
    on_cpu = policy.own and (config.settings.rl.device == "cpu" or not has_gpu())
    told = estimate(resolved, sampled.seconds / sum(map(len, sampled.scores)), update_s, on_cpu)
    files = {"output_file": str(output), "log_file": str(log)}
    return {**judge(sampled, resolved), "estimate": told, **files}


@contextmanager
def _appearance_of(path: Path) -> Iterator[Callable[[], float]]:
    """When the file came to be: sampling begins then, after imports and set-up."""
    seen: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not path.exists():
            if done.wait(_LOOK_EVERY_S):
                return
        seen.append(time.time())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: seen[0] if seen else _last_write_s(path)
    finally:
        done.set()
        watcher.join()


def _last_write_s(path: Path) -> float:
    return path.stat().st_mtime


class _Policy(NamedTuple):
    """The untrained one."""

    server: TestedServer
    url: str
    own: bool
    """Whether an engine of this machine's has it, like a run's own."""


@contextmanager
def _policy(config: Config, model: str, log: Path) -> Iterator[_Policy]:
    """At the service where there is one, else with an engine of its own."""
    service = service_of(config.settings.rl, config.environ)
    if service is None:
        with _engine(config, model if is_local(model) else _downloaded(model), log) as policy:
            yield policy
        return
    from hermes.training.service.openai_proxy import offered, tokenizer_of
    from hermes.training.service.token_meter import TokenMeter

    with (
        TemporaryDirectory() as counted,
        offered(
            connection(service, config.environ),
            model,
            tokenizer_of(model, config.home),
            0,
            TokenMeter(Path(counted)),
        ) as face,
    ):
        yield _Policy(_server(face.url, model), face.url, own=False)


@contextmanager
def _engine(config: Config, model: str, log: Path) -> Iterator[_Policy]:
    """An engine for as long as the sampling takes."""
    port, device = ports.choose(ports.ENGINE_PORT), config.settings.rl.device
    with (
        TemporaryDirectory() as state,
        engine_process(model, device, port, log, Path(state), _NO_TOKEN) as url,
    ):
        yield _Policy(_server(url, model), url, own=True)


def _server(url: str, model: str) -> TestedServer:
    return TestedServer(model, {"base_url": f"{url}/v1", "model_name": model, "server_type": "sglang"})


def _downloaded(model: str) -> str:
    """The folder of a model of the hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return str(snapshot_download(model))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise HermesError(
            f"the model {model} cannot be had: {error}",
            "check its name in rl.model and your connection; a folder works too",
        ) from error


def summarise(groups: Sequence[JSONObject], seconds: float) -> Sampled:
    overrides = [each for group in groups for each in group.get("overrides") or []]
    stops = [each["stop_reason"] for each in overrides if each.get("stop_reason")]
    calls = sum(int(each.get("tool_calls", 0)) for each in overrides)
    errors = sum(int(each.get("tool_errors", 0)) for each in overrides)
    lengths = [len(tokens) for group in groups for tokens in group["tokens"]]
    cut = ("max_tokens", "truncated", "context_full", "length")
    return Sampled(
        tuple(tuple(float(score) for score in group["scores"]) for group in groups),
        statistics.fmean(lengths) if lengths else 0.0,
        sum(stop in cut for stop in stops) / len(stops) if stops else None,
        errors / calls if calls else None,
        statistics.fmean(len(set(map(tuple, group["tokens"]))) / len(group["tokens"]) for group in groups),
        seconds,
    )


def judge(sampled: Sampled, resolved: Resolved) -> JSONObject:
    scores = [score for group in sampled.scores for score in group]
    passed = sum(score > 0 for score in scores) / len(scores)
    signal = sum(has_signal(group) for group in sampled.scores) / len(sampled.scores)
    return {
        "environment": resolved.selection.environment,
        "groups": len(sampled.scores),
        "rollouts": len(scores),
        "pass_rate": passed,
        "mean_reward": statistics.fmean(scores),
        "groups_with_signal": signal,
        "distinct_answers": sampled.distinct,
        "truncation": sampled.truncated,
        "tool_errors": sampled.tool_errors,
        "suggested": _suggested(passed, signal, sampled.distinct, resolved),
        "verdict": verdict(passed, statistics.fmean(scores), signal, sampled.truncated or 0.0),
    }


def verdict(passed: float, mean: float, signal: float, truncated: float) -> str:
    """`passed`: the share of rollouts that earned anything; `mean`: their mean reward, 1 being the most."""
    cut = f"; {truncated:.0%} of the rollouts are cut off: raise max_token_length"
    note = cut if truncated > _MUCH_CUT else ""
    if passed == 0:
        advice = "warm up with SFT (start_from) or shape the reward"
        return f"will not learn: no rollout earned anything; {advice}{note}"
    if mean > 0.95:
        return f"little to learn: nearly every rollout succeeds already{note}"
    if signal == 0:
        return f"will not learn: within each group all scores are equal; larger groups or other tasks{note}"
    if signal < 0.3:
        return f"will learn slowly: only {signal:.0%} of the groups have anything to compare{note}"
    return f"will learn: {signal:.0%} of the groups have something to compare{note}"


def _suggested(passed: float, signal: float, distinct: float, resolved: Resolved) -> JSONObject:
    """A group needs a success and a failure: rarer successes need larger groups. Answers that are much alike
    need a higher temperature; otherwise it is well as it is."""
    now = int(resolved.values["env.group_size"])
    rare = min(passed, 1 - passed) or 0.02
    needed = next((size for size in (4, 8, 16, 32) if 1 - (1 - rare) ** size >= 0.8), 32)
    suggestion: JSONObject = {
        "group_size": max(now, needed) if signal < 0.5 else now,
        "learning_rate": default_rl_rate(parameters_of(resolved.model)),
    }
    temperature: float | None = resolved.values.get("env.agent_temperature")
    if temperature is not None:
        alike = signal < 0.5 and distinct < _ALIKE
        warmer = round(min(_HOTTEST, temperature + _WARMER), 2)
        suggestion["agent_temperature"] = max(temperature, warmer) if alike else temperature
    return suggestion
