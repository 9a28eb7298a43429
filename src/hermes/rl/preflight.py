"""Sixty seconds that say whether a run will learn, before it is started.

A few groups are sampled from the untrained policy, scored by the environment, and looked at as the trainer
would: does any group have something to learn from? The suggestions follow from that by fixed rules; the time
is extrapolated from what was measured with an engine like the run's own, and the memory is reckoned for a run
on a CPU.
"""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hermes.config.files import ensure_dir
from hermes.config.paths import logs_dir
from hermes.errors import HermesError
from hermes.rl import ports
from hermes.rl.inference_test import Server, is_local, last_error, process, read_groups
from hermes.rl.part import HERMES, Part, ask, launch
from hermes.rl.processes import ProcessId, signal_group
from hermes.rl.service import service_of
from hermes.training.advantages import has_signal
from hermes.training.client import connection
from hermes.training.schedule import default_rl_rate, parameters_of

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSONObject
    from hermes.rl.config import Resolved

GROUPS, SECONDS = 4, 60.0
_UPDATE_SHARE = 0.5
"""Time of an update against that of sampling its batch: a rough assumption, not measured."""
_LOOK_EVERY_S = 0.05
_PROCESSES_GB = 1.3
"""What engine, trainer, environment and API need with nothing in them."""
_TRAINED_AT_ONCE = 1024
"""Tokens of one training micro-batch on a CPU."""
_KNOWN_PARAMETERS, _KNOWN_ACTIVATIONS = 135e6, 322e3
"""Of one model: numbers that a token leaves for the way back. They grow as the square root of the size."""
_MUCH_CUT = 0.3
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
    with _policy(config, resolved.model, engine_log) as server, _appearance_of(output) as begun_s:
        problem = process(resolved, server, overrides, output, log, timeout_s=2 * seconds + 60)
    sampled = summarise(read_groups(output), _last_write_s(output) - begun_s() if output.exists() else 0.0)
    if not sampled.scores:
        raise HermesError(
            f"no group could be sampled: {problem or 'the environment gave none'}", f"see {log}"
        )
    return {**judge(sampled, resolved), "output_file": str(output), "log_file": str(log)}


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


@contextmanager
def _policy(config: Config, model: str, log: Path) -> Iterator[Server]:
    """The untrained policy: at the service where there is one, else with an engine of its own."""
    service = service_of(config.settings.rl, config.environ)
    if service is None:
        with _engine(config, model if is_local(model) else _downloaded(model), log) as server:
            yield server
        return
    from hermes.training.face import offered, tokenizer_of
    from hermes.training.meter import Meter

    with (
        TemporaryDirectory() as counted,
        offered(
            connection(service, config.environ),
            model,
            tokenizer_of(model, config.home),
            0,
            Meter(Path(counted)),
        ) as face,
    ):
        yield _server(face.url, model)


@contextmanager
def _engine(config: Config, model: str, log: Path) -> Iterator[Server]:
    """An engine for as long as the sampling takes."""
    port, device = ports.choose(ports.ENGINE_PORT), config.settings.rl.device
    url = f"http://127.0.0.1:{port}"
    with TemporaryDirectory() as state:
        serve = (*HERMES, "engine", "serve", "--model", model, "--device", device)
        command = (*serve, "--port", str(port), "--state-dir", state)
        part = Part("engine", command, log, lambda: ask(f"{url}/health") is not None, _NO_TOKEN)
        child = launch(part, Path.cwd())
        try:
            while not part.ready():
                if (code := child.poll()) is not None:
                    raise HermesError(f"the engine does not start: {last_error(log, code)}", f"see {log}")
                time.sleep(_LOOK_EVERY_S)
            yield _server(url, model)
        finally:
            signal_group(ProcessId(child.pid, "?"), signal.SIGKILL)
            child.wait()


def _server(url: str, model: str) -> Server:
    return Server(model, {"base_url": f"{url}/v1", "model_name": model, "server_type": "sglang"})


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
        seconds,
    )


def judge(sampled: Sampled, resolved: Resolved) -> JSONObject:
    scores = [score for group in sampled.scores for score in group]
    passed = sum(score > 0 for score in scores) / len(scores)
    signal = sum(has_signal(group) for group in sampled.scores) / len(sampled.scores)
    return {
        "environment": resolved.selection.environment,
        "rollouts": len(scores),
        "pass_rate": passed,
        "mean_reward": statistics.fmean(scores),
        "groups_with_signal": signal,
        "truncation": sampled.truncated,
        "tool_errors": sampled.tool_errors,
        "suggested": _suggested(passed, statistics.fmean(scores), signal, resolved),
        "estimate": _estimate(sampled, len(scores), resolved),
        "verdict": verdict(passed, statistics.fmean(scores), signal, sampled.truncated or 0.0),
    }


def verdict(passed: float, mean: float, signal: float, truncated: float) -> str:
    """`passed`: the share of rollouts that earned anything; `mean`: their mean reward, 1 being the most."""
    cut = f"; {truncated:.0%} of the rollouts are cut off: raise max_token_length"
    note = cut if truncated > _MUCH_CUT else ""
    if passed == 0:
        return f"will not learn: no rollout earned anything; warm up with SFT or shape the reward{note}"
    if mean > 0.95:
        return f"little to learn: nearly every rollout succeeds already{note}"
    if signal == 0:
        return f"will not learn: within each group all scores are equal; larger groups or other tasks{note}"
    if signal < 0.3:
        return f"will learn slowly: only {signal:.0%} of the groups have anything to compare{note}"
    return f"will learn: {signal:.0%} of the groups have something to compare{note}"


def _suggested(passed: float, mean: float, signal: float, resolved: Resolved) -> JSONObject:
    """A group needs a success and a failure: rarer successes need larger groups."""
    now = int(resolved.values["env.group_size"])
    rare = min(passed, 1 - passed) or 0.02
    needed = next((size for size in (4, 8, 16, 32) if 1 - (1 - rare) ** size >= 0.8), 32)
    suggestion: JSONObject = {
        "group_size": max(now, needed) if signal < 0.5 else now,
        "learning_rate": default_rl_rate(parameters_of(resolved.model)),
    }
    if "env.agent_temperature" in resolved.values:
        suggestion["agent_temperature"] = 1.2 if mean > 0.95 else 1.0
    return suggestion


def _estimate(sampled: Sampled, rollouts: int, resolved: Resolved) -> JSONObject:
    values = resolved.values
    parameters = parameters_of(resolved.model) or 0.0
    step_s = sampled.seconds / rollouts * values["env.batch_size"] * (1 + _UPDATE_SHARE)
    activations = _KNOWN_ACTIVATIONS * (parameters / _KNOWN_PARAMETERS) ** 0.5
    numbers = parameters + _TRAINED_AT_ONCE * activations
    return {
        "seconds_per_step": round(step_s, 1),
        "hours": round(step_s * values["env.total_steps"] / 3600, 2),
        "memory_gb": round(_PROCESSES_GB + 4 * numbers / 1e9, 2),
    }
