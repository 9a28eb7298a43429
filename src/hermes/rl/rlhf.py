"""RLHF: PPO against a reward model, with its processes: trajectory API, reward model, and environments.

The trainer itself is that of every RL run. Its API keeps a journal in the run's folder, so a run that is
killed resumes with the batches it had. Processes that a killed trainer left behind are stopped first.
"""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.config.load import Config
from hermes.config.paths import db_path
from hermes.disk.files import atomic_write, ensure_dir, read_text
from hermes.errors import HermesError
from hermes.rl.process import ProcessId, signal_group
from hermes.rl.supervise import ports
from hermes.rl.supervise.engine_process import api_arguments
from hermes.rl.supervise.process_group import ProcessGroup
from hermes.serving.fetch import fetch_json
from hermes.store import Reader
from hermes.training.launch import Launch, chat_renderer, run_spec, train_rl
from hermes.training.monitor.overoptimisation import OveroptimisationGuard
from hermes.training.options import RlhfOptions
from hermes.training.preference.reference import BASE
from hermes.training.session import TrainingRunSpec, TrainResult
from hermes.training.start_weights import find_start

if TYPE_CHECKING:
    from hermes.data.export.select import TrajectorySelection
    from hermes.training.critic import CriticConfig
    from hermes.training.rl import PreferenceCheck

ENVIRONMENT = "preference"
REWARD_PORT = 8002
_PROCESSES = "rlhf_processes.json"
_POLL_S = 0.5


def rlhf_run_spec(config: Config, options: RlhfOptions) -> TrainingRunSpec:
    run = run_spec(config, options, "rlhf")
    # Other runs publish to the same engine: the environments ask for this run's weights by its own name.
    return replace(run, lora=replace(run.lora, policy=run.lora.policy or run.id))


def train_rlhf(
    launch: Launch, options: RlhfOptions, selection: TrajectorySelection | None
) -> tuple[TrainResult, HermesError | None]:
    """The result, and why a process of the run failed, if one did.

    `selection`: the stored trajectories whose prompts are answered, unless a file of prompts is named.
    """
    run = launch.run
    reference = _reference(launch, options)
    prompts = (options.prompts or _stored_prompts(launch, selection)).absolute()
    with rlhf_processes(options, run, prompts, launch.stop) as processes:
        launch.progress(
            f"answers to {prompts}, scored by {options.reward_model}; logs in {run.folder / 'logs'}"
        )
        result = train_rl(
            launch,
            options,
            api_url=processes.api_url,
            reference=reference,
            guard=None if options.no_early_stop else OveroptimisationGuard(),
            measure_kl=True,
            critic=_critic(options),
            preference=_preference(launch, options, reference),
        )
    return result, processes.failure


def _stored_prompts(launch: Launch, selection: TrajectorySelection | None) -> Path:
    from hermes.training.preference.prompts import write_prompts

    path = launch.run.folder / "prompts.jsonl"
    if not path.exists():  # a resumed run has the prompts it began with
        assert selection is not None, "without a file of prompts there is a selection"
        with Reader(db_path(launch.config.home)) as reader:
            write_prompts(reader, selection, path)
    return path


def _reference(launch: Launch, options: RlhfOptions) -> str | None:
    """None: the base model."""
    lora = launch.run.lora
    if options.reference is None:
        return lora.start
    if options.reference == BASE:
        return None
    return find_start(options.reference, launch.config.home, lora.base_model)


def _critic(options: RlhfOptions) -> CriticConfig | None:
    """None: the baseline is the group's."""
    if not options.critic:
        return None
    from hermes.training.critic import CriticConfig
    from hermes.training.preference.readout import ReadOut, readout_tokens

    words = readout_tokens(ReadOut(), chat_renderer(options))
    return CriticConfig(words, options.gae_lambda, options.critic_rate, options.max_tokens)


def _preference(launch: Launch, options: RlhfOptions, reference: str | None) -> PreferenceCheck | None:
    if not options.preferences:
        return None
    from hermes.training.preference.examples import RowLimits, pair_examples
    from hermes.training.preference.reference import HeldOutPreference
    from hermes.training.preference.sources import from_files

    pairs = from_files(options.preferences).pairs
    limits = RowLimits(options.max_tokens, 0.0, 1)
    rows = pair_examples(pairs, chat_renderer(options), Counter(), limits)
    return HeldOutPreference(launch.run, rows.train, reference or BASE)


@dataclass(slots=True)
class RlhfProcesses:
    """The running processes of a run."""

    api_url: str
    failure: HermesError | None = None
    """The reason, if one of them failed; the trainer has been told to stop then."""


@contextmanager
def rlhf_processes(
    options: RlhfOptions, run: TrainingRunSpec, prompts: Path, stop: threading.Event
) -> Iterator[RlhfProcesses]:
    """Runs them for as long as the block does. `stop` is set if one of them fails."""
    folder = run.folder
    stop_leftovers(folder)
    ensure_dir(folder)
    with ProcessGroup(folder / "logs", folder, {}) as group:
        reward_url = _start_reward_model(options.reward_model, run.connection.url, group)
        api_url = _start_api(group, folder)
        for number in range(options.env_replicas):
            words = environment_arguments(options, run, prompts, number, api_url, reward_url)
            group.start(f"env-{number}", words)
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


def _start_reward_model(reward_model: str, engine_url: str, group: ProcessGroup) -> str:
    if reward_model.startswith(("http://", "https://")):
        return reward_model
    port = ports.choose(REWARD_PORT)
    url = f"http://127.0.0.1:{port}"
    arguments = ("reward", "serve", reward_model, "--port", str(port), "--service", engine_url)
    group.serve("reward", arguments, lambda: fetch_json(f"{url}/health") is not None)
    return url


def _start_api(group: ProcessGroup, folder: Path) -> str:
    port = ports.choose(ports.API_PORT)
    url = f"http://127.0.0.1:{port}"
    group.serve("api", api_arguments(port, folder), lambda: fetch_json(f"{url}/status") is not None)
    return url


def environment_arguments(
    options: RlhfOptions,
    run: TrainingRunSpec,
    prompts: Path,
    number: int,
    api_url: str,
    reward_url: str,
) -> tuple[str, ...]:
    """`hermes env serve …` for one of the environments."""
    group_size, steps = options.group_size, options.steps
    groups = max(1, options.sequences // group_size)
    settings: dict[str, object] = {
        "env.dataset_name": prompts,
        "env.reward_model_url": reward_url,
        "env.seed": options.seed + number,
        "env.tokenizer_name": run.lora.base_model,
        "env.group_size": group_size,
        "env.max_token_length": options.answer_tokens,
        "env.max_agent_turns": options.max_turns,
        "env.agent_temperature": options.temperature,
        "env.tool_call_parser": "hermes",
        "env.max_num_workers": max(1, groups // options.env_replicas),
        "env.max_batches_offpolicy": min(1, options.max_staleness),
        "env.total_steps": steps,
        "env.steps_per_eval": steps + 1,
        "env.ensure_scores_are_not_same": False,  # the trainer leaves them out, but the curves count them
        "env.rollout_server_url": api_url,
        "env.use_wandb": False,
        "env.stop_patience_s": 0,
        "openai.base_url": f"{run.connection.url}/v1",
        "openai.model_name": run.lora.policy or run.id,
        "openai.server_type": "sglang",
    }
    if options.toolsets:
        settings["env.enabled_toolsets"] = json.dumps(options.toolsets)
    if options.system_prompt:
        settings["env.system_prompt"] = options.system_prompt
    if options.true_reward:
        file, _, function = options.true_reward.rpartition(":")
        settings["env.true_reward"] = f"{Path(file).absolute()}:{function}" if file else function
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
