"""Predicts whether a run will learn, before it is started: within a minute, on a slow machine within five.

A few groups are sampled from the policy that the run would start from, and scored by the environment. The
prediction is whether they have signal for the trainer. Groups that are not finished in time are ignored. The
suggestions follow from the measurements by fixed rules; `estimate` has time and memory.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from hermes.config.paths import db_path, logs_dir
from hermes.core.sequence import MASKED
from hermes.disk.files import ensure_dir
from hermes.envs.programs.record import RolloutFacts
from hermes.errors import HermesError
from hermes.rl.checks.inference_test import TestedServer, is_local, read_groups, run_process_mode
from hermes.rl.checks.replica_memory import missing_memory
from hermes.rl.config.base_model import hub_folder
from hermes.rl.machine import has_gpu
from hermes.rl.service import LOCAL_KEY, service_of
from hermes.rl.supervise import ports
from hermes.rl.supervise.engine_process import engine_options, engine_process
from hermes.store import Reader
from hermes.training.data.advantages import has_signal
from hermes.training.policy_registry import named_policy
from hermes.training.schedule import default_rl_rate, parameters_of
from hermes.training.service.client import ServiceConnection, connection
from hermes.training.start_weights import find_folder, find_start

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSONObject
    from hermes.rl.config.fields import TrainerFields
    from hermes.rl.config.resolve import Resolved

GROUPS, SECONDS = 4, 60.0
"""How many groups are sampled, and how long that may take where _LEAST_GROUPS are finished by then."""
_MOST_ROLLOUTS = 8
"""In a group."""
_PROGRAM_GROUPS, _PROGRAM_ROLLOUTS, _PROGRAM_SECONDS = 1, 3, 180.0
"""Rollouts of a program take long: so few show what it does, and whether rewards of one task differ."""
_LEAST_GROUPS = 2
START_S = 120.0
"""How long the environment may take before it begins to sample."""
_POLL_S = 0.05
_HIGH_TRUNCATION = 0.3
_MIN_DISTINCT, _TEMPERATURE_STEP, _MAX_TEMPERATURE = 0.5, 0.2, 1.4
"""If a smaller share of a group's answers differ, a higher temperature is suggested; by how much."""
_NO_TOKEN = {"HERMES_ENGINE_TOKEN": ""}
"""The engine listens on loopback only, so it needs no token."""
_PROCESSES_GB = 1.3
"""Memory of engine, trainer, environment and API without a model."""
_TRAINED_AT_ONCE = 1024
"""Tokens of one training micro-batch on a CPU."""
_KNOWN_PARAMETERS, _KNOWN_ACTIVATIONS = 135e6, 322e3
"""Values per token that one model keeps for the backward pass. They grow as the square root of the size."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Statistics of the groups that the policy sampled."""

    scores: tuple[tuple[float, ...], ...]
    sequence_tokens: float
    """Mean length, prompt included."""
    truncated: float | None
    """Share of rollouts that were cut off; None: not reported."""
    tool_errors: float | None
    """Share of tool calls that failed."""
    distinct: float
    """Share of a group's answers that differ from each other, on average."""
    seconds: float
    success: float | None = None
    """Share of rollouts that the environment calls a success; None: it gives no verdict."""


def preflight(
    config: Config, resolved: Resolved, groups: int | None = None, seconds: float | None = None
) -> JSONObject:
    """Samples, judges, suggests. `groups` None: GROUPS, or one of three rollouts of a program."""
    is_program = bool(resolved.values.get("env.agent"))
    groups = groups or (_PROGRAM_GROUPS if is_program else GROUPS)
    seconds = seconds or (_PROGRAM_SECONDS if is_program else SECONDS)
    folder = ensure_dir(logs_dir(config.home) / "rl_training" / "preflight")
    stem = f"{resolved.selection.environment}_{time.time_ns() // 1000}"
    output, log = folder / f"{stem}.jsonl", folder / f"{stem}.log"
    most = _PROGRAM_ROLLOUTS if is_program else _MOST_ROLLOUTS
    size = min(most, int(resolved.values["env.group_size"]))
    overrides: JSONObject = {"total_steps": groups, "group_size": size, "use_wandb": False}
    if is_program:
        overrides["max_failed_groups"] = 1
    service = service_of(config.settings.rl, config.environ)
    on_cpu = service is None and (config.settings.rl.device == "cpu" or not has_gpu())
    if on_cpu:  # all groups at once would end together, late; two of them suffice
        overrides["max_num_workers"] = _LEAST_GROUPS
    if texts := _texts(config, resolved):
        overrides["texts"] = texts
    engine_log = folder / f"{stem}_engine.log"
    if (missing := missing_memory(config, resolved.model, resolved.trainer)) is not None:
        raise HermesError(missing.problem, missing.fix)
    with open_policy(config, resolved, engine_log) as policy:
        with _creation_time(output) as began_s:
            least = min(groups, _LEAST_GROUPS)
            problem = run_process_mode(
                resolved, policy.server, overrides, output, log, seconds, START_S, least
            )
        sampled_groups = read_groups(output)
        if not sampled_groups:
            raise HermesError(
                f"no group could be sampled: {problem or 'the environment returned none'}",
                f"see {log}; '--set max_token_length=N' cuts answers sooner than at "
                f"{resolved.values['env.max_token_length']} tokens, 'hermes rl preflight --timeout N' allows "
                "more time, and 'hermes rl start --no-preflight' starts without it",
            )
        sampled = summarise(sampled_groups, _last_write_s(output) - began_s())
        update_s = None
        if policy.is_own_engine:
            update_s = update_seconds(policy.url, policy.server.name, resolved, sampled_groups)
    sampling_s = sampled.seconds / sum(map(len, sampled.scores))
    costs = estimate(resolved, sampling_s, update_s, on_cpu)
    files = {"output_file": str(output), "log_file": str(log)}
    facts = {"program": program_facts(config, sampled_groups)} if is_program else {}
    return {**judge(sampled, resolved), **facts, "estimate": costs, **files}


def program_facts(config: Config, groups: Sequence[JSONObject]) -> JSONObject:
    """Facts of the rollouts of a program; a list has a value of each."""
    scores = {
        overrides["trajectory_id"]: score
        for group in groups
        for overrides, score in zip(group["overrides"], group["scores"], strict=True)
    }
    with Reader(db_path(config.home)) as reader:
        facts = [RolloutFacts.from_json(reader.get(name).header.metadata) for name in scores]
    return {
        "calls": [rollout.counts.calls for rollout in facts],
        "seconds": [rollout.duration_s for rollout in facts],
        "rewards": list(scores.values()),
        "rewards_differ": len(set(scores.values())) > 1,
        "first_prompt_tokens": max(rollout.first_prompt_tokens for rollout in facts),
        "longest_tokens": max(len(tokens) for group in groups for tokens in group["tokens"]),
        "context_tokens": facts[0].context_tokens,
    }


@contextmanager
def _creation_time(path: Path) -> Iterator[Callable[[], float]]:
    """Yields a function that returns when the file was created: sampling begins then, after the set-up."""
    created_s: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not path.exists():
            if done.wait(_POLL_S):
                return
        created_s.append(time.time())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: created_s[0] if created_s else _last_write_s(path)
    finally:
        done.set()
        watcher.join()


def _last_write_s(path: Path) -> float:
    return path.stat().st_mtime


class Policy(NamedTuple):
    """The server of the policy that the run would start from."""

    server: TestedServer
    url: str
    is_own_engine: bool
    """Whether it is an engine of this machine, like the engine of a run."""


@contextmanager
def open_policy(config: Config, resolved: Resolved, log: Path) -> Iterator[Policy]:
    """The policy at the configured service, else at a temporary engine."""
    model = resolved.model
    start = find_start(resolved.trainer.start_from, config.home, model)
    service = service_of(config.settings.rl, config.environ)
    if service is None:
        source = model if is_local(model) else str(hub_folder(model))
        with _engine(config, source, log, resolved.trainer) as url:
            weights = None
            if start is not None:
                folder = str(find_folder(start, config.home))
                weights = _publish(ServiceConnection(url, LOCAL_KEY), source, folder)
            yield Policy(_server(url, source, weights), url, is_own_engine=True)
        return
    from hermes.training.service.openai_proxy import serve_proxy, tokenizer_of
    from hermes.training.service.token_meter import TokenMeter

    at_service = connection(service, config.environ)
    weights = None if start is None else _publish(at_service, model, start)
    with TemporaryDirectory() as meter_folder:
        meter = TokenMeter(Path(meter_folder))
        with serve_proxy(at_service, model, tokenizer_of(model, config.home), 0, meter) as proxy:
            yield Policy(_server(proxy.url, model, weights), proxy.url, is_own_engine=False)


@contextmanager
def _engine(config: Config, model: str, log: Path, fields: TrainerFields) -> Iterator[str]:
    """The address of a temporary engine with the options of the run's own, but one process."""
    with TemporaryDirectory() as state:
        options = engine_options(
            fields,
            model=model,
            device=config.settings.rl.device,
            port=ports.choose(ports.ENGINE_PORT),
            state_dir=Path(state),
            replicas="1",
        )
        with engine_process(options, log, _NO_TOKEN) as url:
            yield url


def _publish(service: ServiceConnection, model: str, start: str) -> str:
    """The tinker:// path at which these weights are sampled there; a folder is uploaded first."""
    from hermes.training.service.client import AdapterClient, LoraSpec
    from hermes.training.service.token_meter import TokenMeter

    lora = LoraSpec(model, start=start)
    with (
        TemporaryDirectory() as meter_folder,
        closing(TokenMeter(Path(meter_folder))) as meter,
        AdapterClient(service, lora, meter) as client,
    ):
        return client.publish("preflight")


def _server(url: str, model: str, weights: str | None) -> TestedServer:
    named = weights or model
    return TestedServer(model, {"base_url": f"{url}/v1", "model_name": named, "server_type": "sglang"})


def _texts(config: Config, resolved: Resolved) -> JSONObject:
    """The texts of the policy that the run starts from, where the environment takes them and has none."""
    policy = named_policy(config.home, resolved.trainer.start_from)
    return dict(policy.texts) if policy and resolved.values.get("env.texts") == {} else {}


def summarise(groups: Sequence[JSONObject], seconds: float) -> Sampled:
    rollouts = [overrides for group in groups for overrides in group.get("overrides") or []]
    stops = [rollout["stop_reason"] for rollout in rollouts if rollout.get("stop_reason")]
    calls = sum(int(rollout.get("tool_calls", 0)) for rollout in rollouts)
    errors = sum(int(rollout.get("tool_errors", 0)) for rollout in rollouts)
    lengths = [len(tokens) for group in groups for tokens in group["tokens"]]
    verdicts = [float(rollout["success"]) for rollout in rollouts if rollout.get("success") is not None]
    cut = ("max_tokens", "truncated", "context_full", "length")
    return Sampled(
        tuple(tuple(float(score) for score in group["scores"]) for group in groups),
        statistics.fmean(lengths) if lengths else 0.0,
        sum(stop in cut for stop in stops) / len(stops) if stops else None,
        errors / calls if calls else None,
        statistics.fmean(len(set(map(tuple, group["tokens"]))) / len(group["tokens"]) for group in groups),
        seconds,
        statistics.fmean(verdicts) if verdicts else None,
    )


def judge(sampled: Sampled, resolved: Resolved) -> JSONObject:
    scores = [score for group in sampled.scores for score in group]
    signal = sum(has_signal(group) for group in sampled.scores) / len(sampled.scores)
    return {
        "environment": resolved.selection.environment,
        "groups": len(sampled.scores),
        "rollouts": len(scores),
        "percent_correct": None if sampled.success is None else 100 * sampled.success,
        "percent_positive_reward": 100 * statistics.fmean(score > 0 for score in scores),
        "mean_reward": statistics.fmean(scores),
        "groups_with_signal": signal,
        "distinct_answers": sampled.distinct,
        "truncation": sampled.truncated,
        "tool_errors": sampled.tool_errors,
        "suggested": _suggestions(above_least(scores), signal, sampled.distinct, resolved),
        "verdict": verdict(scores, signal, sampled.truncated or 0.0),
    }


def above_least(scores: Sequence[float]) -> float:
    """The share of rollouts that earned more than the least: 0, or the lowest score where it is negative."""
    least = min(0.0, *scores)
    return sum(score > least for score in scores) / len(scores)


def verdict(scores: Sequence[float], signal: float, truncated: float) -> str:
    """Whatever the range of the rewards: only differences within groups teach, and only if there is a better
    answer than nearly all of them. `signal`: the share of groups whose scores differ."""
    cut = f"; {truncated:.0%} of the rollouts are cut off: raise max_token_length"
    note = cut if truncated > _HIGH_TRUNCATION else ""
    lowest, highest = min(scores), max(scores)
    if lowest == highest:
        if lowest == 1.0:
            return f"little to learn: every rollout succeeds already{note}"
        advice = (
            "warm up with SFT (start_from) or shape the reward; if it is the best score, use harder tasks"
        )
        earned = "no rollout earned anything" if not lowest else f"every rollout earned {lowest:g}"
        return f"will not learn: {earned}; {advice}{note}"
    if signal == 0:
        return f"will not learn: within each group all scores are equal; larger groups or other tasks{note}"
    near_best = sum(score > highest - 0.05 * (highest - lowest) for score in scores) / len(scores)
    if near_best > 0.95:
        return f"little to learn: nearly every rollout earns {highest:g} already{note}"
    if signal < 0.3:
        return f"will learn slowly: only {signal:.0%} of the groups have anything to compare{note}"
    return f"will learn: {signal:.0%} of the groups have something to compare{note}"


def _suggestions(passed: float, signal: float, distinct: float, resolved: Resolved) -> JSONObject:
    """A group needs a success and a failure: rarer successes need larger groups. Answers that are too similar
    need a higher temperature."""
    current = int(resolved.values["env.group_size"])
    rare = min(passed, 1 - passed) or 0.02
    needed = next((size for size in (4, 8, 16, 32) if 1 - (1 - rare) ** size >= 0.8), 32)
    suggestion: JSONObject = {
        "group_size": max(current, needed) if signal < 0.5 else current,
        "learning_rate": default_rl_rate(parameters_of(resolved.model)),
    }
    temperature: float | None = resolved.values.get("env.agent_temperature")
    if temperature is not None:
        too_similar = signal < 0.5 and distinct < _MIN_DISTINCT
        higher = round(min(_MAX_TEMPERATURE, temperature + _TEMPERATURE_STEP), 2)
        suggestion["agent_temperature"] = max(temperature, higher) if too_similar else temperature
    return suggestion


def update_seconds(url: str, model: str, resolved: Resolved, groups: Sequence[JSONObject]) -> float | None:
    """The time of an update per sequence, at that engine; None: every group is too long for the trainer.

    The second of two equal updates is measured: the first one also initialises the engine.
    """
    from hermes.training.data.datums import LossSpec, sft_datum
    from hermes.training.service.client import AdapterClient, LoraSpec
    from hermes.training.service.token_meter import TokenMeter

    longest = resolved.values["tinker.max_token_trainer_length"]
    fitting = [group for group in groups if all(len(tokens) <= longest for tokens in group["tokens"])]
    if not fitting:
        return None
    pairs = zip(fitting[0]["tokens"], fitting[0]["masks"], strict=True)
    data = [sft_datum(tokens, [float(token != MASKED) for token in mask]) for tokens, mask in pairs]
    lora = LoraSpec(model, resolved.values["tinker.lora_rank"])
    with (
        TemporaryDirectory() as meter_folder,
        closing(TokenMeter(Path(meter_folder))) as meter,
        AdapterClient(ServiceConnection(url, LOCAL_KEY), lora, meter) as client,
    ):
        for _ in range(2):
            begun_s = time.monotonic()
            client.forward_backward(data, LossSpec("cross_entropy", {}))
            client.optim_step(1e-6, 0.9, 0.95, 1.0)
            took_s = time.monotonic() - begun_s
    return took_s / len(data)


def estimate(resolved: Resolved, sampling_s: float, update_s: float | None, on_cpu: bool) -> JSONObject:
    """`sampling_s` and `update_s` are those of one sequence."""
    values = resolved.values
    step_s = (sampling_s + (update_s or 0.0)) * values["env.batch_size"]
    return {
        "seconds_per_step": round(step_s, 1),
        "hours": round(step_s * values["env.total_steps"] / 3600, 2),
        "update_share": None if update_s is None else round(update_s / (sampling_s + update_s), 2),
        "memory_gb": _memory_gb(resolved.model) if on_cpu else None,
    }


def _memory_gb(model: str) -> float:
    parameters: float = parameters_of(model) or 0.0
    activations = _KNOWN_ACTIVATIONS * (parameters / _KNOWN_PARAMETERS) ** 0.5
    needed: float = _PROCESSES_GB + 4 * (parameters + _TRAINED_AT_ONCE * activations) / 1e9
    return round(needed, 2)
