"""Tests an environment before training: several models each sample a few groups, which are scored.

Every test writes new files under logs/rl_training/inference_tests; none of an earlier test is read. A model
that cannot be sampled is reported with its error beside the others. Keys are passed in a private file that is
removed afterwards.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.config.paths import logs_dir
from hermes.config.settings import LOCAL
from hermes.disk.files import atomic_write, ensure_dir
from hermes.errors import HermesError
from hermes.rl.config.resolve import POLICY, Resolved
from hermes.rl.process import ProcessId, last_error, signal_group
from hermes.rl.run_config import dump_yaml

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSONObject

DEFAULT_MODELS = (
    ("qwen/qwen3-8b", "small"),
    ("z-ai/glm-4.7-flash", "medium"),
    ("minimax/minimax-m2.7", "large"),
)
STEPS, GROUP_SIZE = 3, 16
_TIMEOUT_S = 600.0
_TAIL_CHARS = 2000
PATIENCE = 5
"""How many times its time limit a check may take that would otherwise have measured nothing."""
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class TestedServer:
    """The server of a tested model, as settings of an environment."""

    name: str
    settings: JSONObject


def run_inference_test(
    config: Config,
    resolved: Resolved,
    models: Sequence[str] = (),
    num_steps: int = STEPS,
    group_size: int = GROUP_SIZE,
) -> JSONObject:
    """Runs the environment with each model, one after the other."""
    scales = dict(DEFAULT_MODELS)
    folder = ensure_dir(logs_dir(config.home) / "rl_training" / "inference_tests")
    tested = []
    for name in models or scales:
        tested.append(_test_model(config, resolved, name, num_steps, group_size, folder))
        tested[-1]["scale"] = scales.get(name, "custom")
    succeeded = [result for result in tested if "error" not in result]
    best = max(succeeded, key=lambda result: result["accuracy"], default=None)
    return {
        "environment": resolved.selection.environment,
        "environment_file": resolved.selection.file_path,
        "test_config": {
            "num_steps": num_steps,
            "group_size": group_size,
            "models": len(tested),
            "total_completions": num_steps * group_size * len(tested),
        },
        "models_tested": tested,
        "summary": {
            "steps_requested": num_steps,
            "models_tested": len(tested),
            "models_succeeded": len(succeeded),
            "best_model": best["model"] if best else None,
            "avg_accuracy": (
                sum(result["accuracy"] for result in succeeded) / len(succeeded) if succeeded else None
            ),
            "environment_working": _works(tested),
            "output_directory": str(folder),
        },
    }


def _works(tested: Sequence[JSONObject]) -> bool | None:
    """Whether any model could be tested; None where none was even asked, which says nothing about it."""
    if not any(result.get("asked", True) for result in tested):
        return None
    return any("error" not in result for result in tested)


def _test_model(
    config: Config, resolved: Resolved, name: str, steps: int, group_size: int, folder: Path
) -> dict[str, Any]:
    stem = f"test_{resolved.selection.environment}_{_file_name(name)}_{time.time_ns() // 1000}"
    output, log = folder / f"{stem}.jsonl", folder / f"{stem}.log"
    result: dict[str, Any] = {"model": name, "name": name.rpartition("/")[2], "wandb_run": None}
    result |= {"output_file": str(output), "log_file": str(log)}
    try:
        server = server_for(config, name)
    except HermesError as error:
        return {
            **result,
            **_figures([], 0),
            "asked": False,
            "error": f"{error.message}; {error.hint}".rstrip("; "),
        }
    overrides = {"total_steps": steps, "group_size": group_size, "use_wandb": False}
    problem = run_process_mode(resolved, server, overrides, output, log)
    groups = read_groups(output)
    figures = _figures(groups, steps)
    if problem is None and not groups:
        problem = "no group could be scored"
    if problem is not None:
        tail = log.read_text(errors="replace")[-_TAIL_CHARS:] if log.exists() else ""
        return {**result, **figures, "error": problem, "stderr": tail}
    return {**result, **figures}


def run_process_mode(
    resolved: Resolved,
    server: TestedServer,
    overrides: JSONObject,
    output: Path,
    log: Path,
    timeout_s: float = _TIMEOUT_S,
    start_s: float = 0.0,
    least_groups: int = 0,
) -> str | None:
    """Runs the process mode of the environment in a child process; the problem, or None.

    `start_s`: how long it may take until it begins to sample. `least_groups`: while fewer are finished it
    may take PATIENCE times as long: a slow machine is no reason to know nothing.
    """
    config = log.with_suffix(".yaml")
    env = {**resolved.section("env"), **overrides, "data_path_to_save_groups": str(output)}
    env["ensure_scores_are_not_same"] = False
    atomic_write(config, dump_yaml({"env": env, "openai": [server.settings]}))
    command = [sys.executable, "-P", "-m", "hermes", "env", "process", resolved.selection.file_path]
    try:
        words = [*command, "--config", str(config)]
        code = sample_until(words, log, timeout_s, output, start_s, least_groups)
    finally:
        config.unlink(missing_ok=True)
    if code is None:
        return f"it took longer than {timeout_s * (PATIENCE if least_groups else 1):g} s"
    return None if code == 0 else last_error(log, f"it ended with exit code {code}")


def sample_until(
    command: Sequence[str],
    log: Path,
    timeout_s: float,
    output: Path,
    start_s: float = 0.0,
    least_groups: int = 0,
) -> int | None:
    """Its exit code; None: it took too long. In any case its whole process group is killed at the end.

    The timeout starts when `output` exists, at the latest after `start_s`.
    """
    with log.open("wb") as file:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    process_id = ProcessId.of(child.pid)
    has_begun = start_s == 0
    deadline_s = latest_s = time.monotonic() + start_s + timeout_s
    try:
        while (code := child.poll()) is None:
            now_s = time.monotonic()
            if not has_begun and output.exists():
                has_begun, deadline_s, latest_s = True, now_s + timeout_s, now_s + PATIENCE * timeout_s
            if now_s >= latest_s or (now_s >= deadline_s and len(read_groups(output)) >= least_groups):
                break
            time.sleep(_POLL_S)
        return code
    finally:
        signal_group(process_id, signal.SIGKILL)
        child.wait()


def is_local(name: str) -> bool:
    """Whether the model runs on this machine and is free of charge."""
    from hermes.config.providers import BUNDLED_PROVIDER

    return Path(name).is_dir() or name.partition("/")[0] == BUNDLED_PROVIDER


def priced_name(config: Config, name: str) -> str:
    """As provider/name; a bare name is a model of OpenRouter."""
    from hermes.config.providers import profiles

    has_provider = name.partition("/")[0] in profiles(config.settings, config.environ)
    return name if has_provider else f"openrouter/{name}"


def server_for(config: Config, name: str) -> TestedServer:
    """The server of a model: bundled, a folder, run:ID, provider/name, or a bare OpenRouter name."""
    from hermes.config.providers import resolve_model
    from hermes.rl.weights.open import find_policy, merged_folder

    if (policy := find_policy(config, name)) is not None:
        if policy.url is not None:
            live = {"base_url": policy.url, "model_name": POLICY, "server_type": "sglang"}
            return TestedServer(policy.name, live)
        name = policy.name if policy.source is None else str(merged_folder(policy.source))
    if Path(name).is_dir():
        return TestedServer(name, {"base_url": LOCAL, "model_name": str(Path(name).absolute())})
    target = resolve_model(config.settings, config.environ, priced_name(config, name))
    if target.is_local:
        return TestedServer(name, {"base_url": LOCAL, "model_name": target.model})
    return TestedServer(
        name,
        {
            "base_url": target.base_url,
            "model_name": target.model,
            "api_key": target.api_key or "",
            "server_type": "openai",
            "health_check": False,
        },
    )


def read_groups(path: Path) -> list[JSONObject]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _figures(groups: Sequence[JSONObject], steps: int) -> dict[str, Any]:
    rows = [
        {
            "step": number,
            "completions": len(group["scores"]),
            "correct": sum(_successes(group)),
            "mean_score": sum(map(float, group["scores"])) / len(group["scores"]),
        }
        for number, group in enumerate(groups, start=1)
        if group["scores"]
    ]
    total = sum(row["completions"] for row in rows)
    correct = sum(row["correct"] for row in rows)
    solved_steps = sum(row["correct"] > 0 for row in rows)
    return {
        "steps": rows,
        "steps_tested": len(rows),
        "total_completions": total,
        "correct_completions": correct,
        "accuracy": correct / total if total else 0.0,
        "steps_with_correct": solved_steps,
        "step_success_rate": solved_steps / len(rows) if rows else 0.0,
    }


def _successes(group: JSONObject) -> Iterator[bool]:
    """The environment's verdict on each completion; of one that gives none, whether its score is above 0."""
    overrides = group.get("overrides") or []
    for score, facts in zip_longest(group["scores"], overrides[: len(group["scores"])]):
        success = (facts or {}).get("success")
        yield float(score) > 0 if success is None else bool(success)


def _file_name(model: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in Path(model).name)
