"""The processes around an RLHF trainer: trajectory API, reward model, and environments with the policy.

The trainer itself is that of every RL run. Its API keeps a journal in the run's folder, so a run that is
killed resumes with the batches it had. Processes that a killed trainer left behind are stopped first.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hermes.disk.files import atomic_write, ensure_dir, read_text
from hermes.errors import HermesError
from hermes.rl.supervise import ports
from hermes.rl.supervise.process import ProcessId, fetch_json, signal_group
from hermes.rl.supervise.process_group import ProcessGroup

ENVIRONMENT = "preference"
REWARD_PORT = 8002
_PROCESSES = "rlhf_processes.json"
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class RlhfPlan:
    """What the environments of an RLHF run do."""

    reward_model: str
    """Name or folder of a trained reward model, or the address of a server."""
    prompts: Path
    policy: str
    """The name under which the engine serves the newest weights of the run."""
    engine_url: str
    tokenizer: str
    batch_size: int
    num_steps: int
    group_size: int = 8
    environments: int = 1
    max_turns: int = 1
    """Most model calls of one rollout: 1 is a single answer."""
    answer_tokens: int = 200
    toolsets: tuple[str, ...] = ()
    system_prompt: str = ""
    temperature: float = 1.0
    true_reward: str = ""
    parser: str = "hermes"
    seed: int = 0
    max_staleness: int = 1


@dataclass(slots=True)
class RlhfProcesses:
    """The running processes of a run."""

    api_url: str
    failure: HermesError | None = None
    """The reason, if one of them failed; the trainer has been told to stop then."""


@contextmanager
def rlhf_processes(plan: RlhfPlan, folder: Path, stop: threading.Event) -> Iterator[RlhfProcesses]:
    """Runs them for as long as the block does. `stop` is set if one of them fails."""
    stop_leftovers(folder)
    ensure_dir(folder)
    with ProcessGroup(folder / "logs", folder, {}) as group:
        reward_url = _start_reward_model(plan, group)
        api_url = _start_api(group, folder)
        for number in range(plan.environments):
            group.start(f"env-{number}", environment_arguments(plan, number, api_url, reward_url))
        _record(folder, group)
        processes, over = RlhfProcesses(api_url), threading.Event()
        watcher = threading.Thread(target=_watch, args=(group, processes, stop, over), daemon=True)
        watcher.start()
        try:
            yield processes
        finally:
            over.set()
            watcher.join()
    (folder / _PROCESSES).unlink(missing_ok=True)


def stop_leftovers(folder: Path) -> None:
    """Kills what a killed trainer of this run left running, by process id and start time."""
    for entry in json.loads(read_text(folder / _PROCESSES) or "[]"):
        process_id = ProcessId.from_json(entry)
        if process_id is not None and process_id.alive():
            signal_group(process_id, signal.SIGKILL)


def _record(folder: Path, group: ProcessGroup) -> None:
    atomic_write(folder / _PROCESSES, json.dumps([process_id.to_json() for process_id in group.ids()]))


def _start_reward_model(plan: RlhfPlan, group: ProcessGroup) -> str:
    if plan.reward_model.startswith(("http://", "https://")):
        return plan.reward_model
    port = ports.choose(REWARD_PORT)
    url = f"http://127.0.0.1:{port}"
    arguments = ("reward", "serve", plan.reward_model, "--port", str(port), "--service", plan.engine_url)
    group.serve("reward", arguments, lambda: fetch_json(f"{url}/health") is not None)
    return url


def _start_api(group: ProcessGroup, folder: Path) -> str:
    port = ports.choose(ports.API_PORT)
    url = f"http://127.0.0.1:{port}"
    arguments = ("api", "--port", str(port), "--state-dir", str(folder / "api"))
    group.serve("api", arguments, lambda: fetch_json(f"{url}/status") is not None)
    return url


def environment_arguments(plan: RlhfPlan, number: int, api_url: str, reward_url: str) -> tuple[str, ...]:
    """`hermes env serve …` for one of the environments."""
    groups = max(1, plan.batch_size // plan.group_size)
    settings: dict[str, object] = {
        "env.dataset_name": plan.prompts,
        "env.reward_model_url": reward_url,
        "env.seed": plan.seed + number,
        "env.tokenizer_name": plan.tokenizer,
        "env.group_size": plan.group_size,
        "env.max_token_length": plan.answer_tokens,
        "env.max_agent_turns": plan.max_turns,
        "env.agent_temperature": plan.temperature,
        "env.tool_call_parser": plan.parser,
        "env.max_num_workers": max(1, groups // plan.environments),
        "env.max_batches_offpolicy": plan.max_staleness,
        "env.total_steps": plan.num_steps,
        "env.steps_per_eval": plan.num_steps + 1,
        "env.ensure_scores_are_not_same": False,  # the trainer leaves them out, but the curves count them
        "env.rollout_server_url": api_url,
        "env.use_wandb": False,
        "env.stop_patience_s": 0,
        "openai.base_url": f"{plan.engine_url}/v1",
        "openai.model_name": plan.policy,
        "openai.server_type": "sglang",
    }
    if plan.toolsets:
        settings["env.enabled_toolsets"] = json.dumps(plan.toolsets)
    if plan.system_prompt:
        settings["env.system_prompt"] = plan.system_prompt
    if plan.true_reward:
        settings["env.true_reward"] = plan.true_reward
    flags = (word for name, value in settings.items() for word in (f"--{name}", str(value)))
    return ("env", "serve", ENVIRONMENT, *flags)


def _watch(
    group: ProcessGroup, processes: RlhfProcesses, stop: threading.Event, over: threading.Event
) -> None:
    """Stops the trainer if a process fails: it would wait for batches that never come."""
    while not over.wait(_POLL_S):
        try:
            group.check()
        except HermesError as error:
            processes.failure = error
            stop.set()
            return
