"""Reinforcement learning from scored rollouts: one loop for GRPO and PPO, whatever the loss or the baseline.

Takes batches from the trajectory API under a lease, computes advantages, updates the adapter through the
Tinker API, and publishes the new weights, which environments sample from then on. A batch is acknowledged
once a checkpoint contains its step. The leases of later steps are recorded on disk, and a resumed run trains
their batches again in the same order. So a kill at any moment loses no batch and trains none twice.

A trainer without a batch waits as long as an environment is connected. Without one it waits for
`env_patience_s`, saves what it has trained, and ends with the reason.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from hermes.core.json import JSONObject
from hermes.serving.trajectory_api import DEFAULT_URL
from hermes.training.checkpoints import StateFile, exclusive_lock
from hermes.training.critic import Critic, CriticConfig, open_critic
from hermes.training.data.api import (
    ENV_PATIENCE_S,
    LEASE_S,
    BatchWait,
    LeasedBatch,
    NoBatch,
    NoEnvironmentError,
    TrainerApi,
)
from hermes.training.data.batch import BatchConfig, TrainBatch, prepare, with_penalty
from hermes.training.distill import Teacher, add_teacher_logprobs
from hermes.training.monitor.batch_guard import BatchGuard
from hermes.training.monitor.evaluations import EVAL_SCORES, EvalWatcher
from hermes.training.monitor.overoptimisation import OVEROPTIMISED, OveroptimisationGuard, read_rows
from hermes.training.monitor.rollout_table import COLUMNS, ROLLOUTS, RolloutTable
from hermes.training.monitor.sinks import Sinks
from hermes.training.monitor.step_pace import StepPace
from hermes.training.schedule import Schedule
from hermes.training.service.client import AdapterClient
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import (
    LIVE_SAMPLERS,
    STOPPED,
    ProgressCallback,
    TrainingRunSpec,
    TrainingSession,
    TrainResult,
    result_of,
    retry_on_engine_loss,
)
from hermes.training.update import Update, UpdateConfig

KIND = "rl"
PLATEAU = "the evaluation stopped rising"
"""Why a run with `patience` ends before its last step."""
_POLL_S = 0.2

Evaluate = Callable[[int, str], dict[str, float]]
"""Step and sampler path → metrics, which are logged as eval/NAME."""
PreferenceCheck = Callable[[AdapterClient], float]
"""The share of held-out preferences that the adapter in training agrees with."""
TRUE_REWARD, PREFERENCE = "reward/true", "eval/preference"


@dataclass(frozen=True, slots=True, kw_only=True)
class RlTrainerConfig(UpdateConfig):
    schedule: Schedule
    num_steps: int
    batch_size: int = 128
    """Sequences a batch."""
    proof_ends_run: bool = True
    """A fault that the proof of training finds ends the run; else it is a warning."""
    kl: float = 0.0
    """Weight of the KL penalty towards the reference; 0: no penalty."""
    reference: str | None = None
    """Weights that the KL is measured from; None: the base model."""
    measure_kl: bool = False
    """Report the KL even if it has no weight."""
    rules: BatchConfig = field(default_factory=BatchConfig)
    critic: CriticConfig | None = None
    """The baseline is a critic adapter; None: the group's, as the rules say."""
    eval_every: int = 25
    eval_checkpoints: bool = True
    """Every checkpoint is evaluated, not only every `eval_every` steps."""
    patience: int | None = None
    """Evaluations without a new best score that end the run; None: no early stopping."""
    api_url: str = DEFAULT_URL
    api_patience_s: float = 60.0
    env_patience_s: float = ENV_PATIENCE_S
    """How long the trainer waits for a batch while no environment is connected."""
    lease_s: float = LEASE_S
    """Time limit of a batch's lease; it is renewed while the trainer runs."""
    project: str = "hermes"
    wandb_group: str | None = None
    """The W&B group that environments log their metrics under; None: the run's name."""


@dataclass(frozen=True, slots=True)
class OpenAIProxyConfig:
    """An OpenAI endpoint that the trainer serves for the newest weights."""

    port: int
    tokenizer: str
    """The folder or hub name of the base model's tokenizer."""


@dataclass(frozen=True, slots=True)
class RunServices:
    """The services that the loop uses besides the engine and the trajectory API."""

    sinks: Sinks
    progress: ProgressCallback
    stop: threading.Event = field(default_factory=threading.Event)
    """Once set, the run finishes the step, saves, and ends."""
    evaluate: Evaluate | None = None
    eval_watcher: EvalWatcher = field(default_factory=lambda: EvalWatcher(None))
    """Evaluations that the environment runs by itself."""
    teacher: Teacher | None = None
    guard: OveroptimisationGuard | None = None
    """Ends a run whose reward rises while what it stands for falls."""
    table: RolloutTable | None = None
    """Makes tables of sampled rollouts for the sinks that show them."""
    preference: PreferenceCheck | None = None
    """Measures, at each evaluation, how often the policy agrees with held-out human preferences."""
    proxy: OpenAIProxyConfig | None = None
    """Serves the newest weights to environments if the Tinker service has no OpenAI endpoint."""


def train(run: TrainingRunSpec, settings: RlTrainerConfig, services: RunServices) -> TrainResult:
    """Trains to the end, from the last checkpoint of the run."""
    with exclusive_lock(run.folder):
        return retry_on_engine_loss(run, lambda: _attempt(run, settings, services), services.progress)


def _attempt(run: TrainingRunSpec, settings: RlTrainerConfig, services: RunServices) -> TrainResult:
    state = StateFile(run.folder).read(KIND, _identity(run, settings))
    if state.finished and (state.step >= settings.num_steps or state.finished.startswith(OVEROPTIMISED)):
        return result_of(state, {})
    with (
        TrainerApi(settings.api_url, settings.api_patience_s, settings.lease_s) as api,
        closing(TokenMeter(run.folder)) as meter,
        # Published first: of weights that are published the newest are served as `policy`.
        _reference(run, settings, meter) as reference,
        open_critic(run, settings.critic, meter, state.step) as critic,
        AdapterClient(run.connection, run.lora, meter, state.weights) as client,
        _proxy(run, services.proxy, meter) as set_policy,
    ):
        session = TrainingSession(
            run,
            state,
            client,
            services.sinks,
            higher_is_better=True,
            on_publish=set_policy,
            live_samplers=max(LIVE_SAMPLERS, settings.rules.max_staleness + 2),
            proof_ends_run=settings.proof_ends_run,
        )
        session.write(finished=None)
        session.publish(state.step)
        for lease_id in state.settled:
            api.acknowledge(lease_id)
        api.register(_registration(run, settings, state.step))
        api.keep_leases(state.taken)
        return RlLoop(session, api, settings, services, reference, critic).run()


@contextmanager
def _reference(run: TrainingRunSpec, settings: RlTrainerConfig, meter: TokenMeter) -> Iterator[str]:
    """The sampler weights that the KL is measured from, or the base model's name. Weights to train from are
    published for the time of the run."""
    name = settings.reference
    if name is None or "/sampler_weights/" in name or not (settings.kl or settings.measure_kl):
        yield name or run.lora.base_model
        return
    lora = replace(run.lora, start=name, policy=None)
    with AdapterClient(run.connection, lora, meter) as frozen:
        path = frozen.publish("reference")
        try:
            yield path
        finally:
            frozen.delete(path)


@contextmanager
def _proxy(
    run: TrainingRunSpec, config: OpenAIProxyConfig | None, meter: TokenMeter
) -> Iterator[Callable[[str], None]]:
    """Yields the function that is called with the path of weights that were published."""
    if config is None:
        yield lambda path: None
        return
    from hermes.training.service.openai_proxy import serve_proxy

    with serve_proxy(run.connection, run.lora.base_model, config.tokenizer, config.port, meter) as proxy:
        yield proxy.set_policy


class RlLoop:
    """The steps of a run, from one leased batch after the other."""

    def __init__(
        self,
        session: TrainingSession,
        api: TrainerApi,
        settings: RlTrainerConfig,
        services: RunServices,
        reference: str | None = None,
        critic: Critic | None = None,
    ) -> None:
        """`reference`: sampler weights, or the base model's name, which is the default."""
        self._critic = critic
        self._reference = reference or session.run.lora.base_model
        self._session = session
        self._api = api
        self._settings = settings
        self._services = services
        self._unacked = list(session.state.taken)
        """Leases of steps after the last checkpoint, which an earlier process of this run made."""
        self._prefetched: list[LeasedBatch] = []
        """Leased to this trainer, and not yet recorded in the state."""
        self._update = Update(session.client, settings)
        self._batch_guard = BatchGuard(has_updates=session.state.step > 0)
        self._rewards: list[float] = []
        """The rewards of the steps since the last checkpoint."""
        services.eval_watcher.record_published(session.state.step)
        if services.guard is not None:
            services.guard.replay(read_rows(session.run.folder, session.state.step))

    def run(self) -> TrainResult:
        session, last = self._session, self._settings.num_steps
        step, ending = session.state.step, STOPPED
        if step == 0:
            self._evaluate_baseline()
        pace = StepPace(last)
        while step < last and not self._is_plateau():
            idle_s = time.monotonic()
            try:
                batch = self._wait_for_batch(step)
            except NoEnvironmentError:
                if step > session.state.step:
                    self._checkpoint(step, {})
                raise
            if batch is None:
                break
            step += 1
            waited_s = time.monotonic() - idle_s
            metrics = {**self.make_step(step, batch), "time/wait_s": waited_s}
            session.log(step, metrics)
            self._write_table(step, batch)
            self._services.progress(_progress_line(step, last, metrics) + pace.left(step))
            if session.checkpoint_due(step, last) or eval_score(metrics) is not None:
                self._checkpoint(step, metrics)
            if self._services.guard is not None and (reason := self._services.guard.judge(metrics)):
                self._services.progress(reason)
                self._services.stop.set()
                ending = reason
                break
        if step > session.state.step or not session.state.kept:
            self._checkpoint(step, {})
        if step >= last:
            self._batch_guard.check_any_signal()
        if ending == STOPPED and self._is_plateau():
            ending = PLATEAU
        return session.finish("all steps made" if step >= last else ending)

    def _write_table(self, step: int, batch: LeasedBatch) -> None:
        table, sinks = self._services.table, self._services.sinks
        if table is not None and table.is_due(step):
            sinks.write_table(step, ROLLOUTS, COLUMNS, table.rows(batch.groups, step))

    def _evaluate_baseline(self) -> None:
        """The score before any update, as row 0 of the metrics."""
        if self._services.evaluate is None:
            return
        metrics = self._evaluation(0)
        if not metrics:
            return
        self._session.log(0, metrics)
        score = eval_score(metrics)
        if score is not None:
            self._session.update_state(best_loss=score)
            self._services.progress(f"step 0: evaluation {score:.4g}")

    def _evaluation(self, step: int) -> dict[str, float]:
        assert self._services.evaluate is not None
        evaluation = self._services.evaluate(step, self._session.sampler)
        return {f"eval/{name}": value for name, value in evaluation.items()}

    def _is_plateau(self) -> bool:
        patience = self._settings.patience
        return patience is not None and self._session.state.waited >= patience

    def _wait_for_batch(self, step: int) -> LeasedBatch | None:
        """The batch for the step after `step`, recorded in the state; None once the run is to stop."""
        stop = self._services.stop
        wait = BatchWait(self._settings.env_patience_s)
        while not stop.is_set():
            batch = self._next_batch()
            if isinstance(batch, LeasedBatch):
                return batch
            if (line := wait.line_if_due(batch)) is not None:
                self._services.progress(f"step {step}: {line}")
            stop.wait(_POLL_S)
        return None

    def _next_batch(self) -> LeasedBatch | NoBatch:
        """An unacknowledged batch of an earlier process first, then one that this run has not trained yet."""
        if (batch := self._redeliver_unacked()) is not None:
            return batch
        new = self._prefetched.pop(0) if self._prefetched else self._next_new()
        if isinstance(new, NoBatch):
            return new
        state = self._session.state
        # An API without a journal counts leases from 1 again, so a known id alone proves nothing.
        if new.redelivered and new.lease_id in state.settled:
            self._api.acknowledge(new.lease_id)
            return NoBatch("the API redelivered a batch that is part of a checkpoint")
        if new.redelivered and new.lease_id in state.taken:
            return NoBatch("the API redelivered a batch that is being trained")
        self._session.write(taken=(*state.taken, new.lease_id), last_lease=new.lease_id)
        return new

    def _redeliver_unacked(self) -> LeasedBatch | None:
        """The next batch of an earlier process; a batch that the API no longer has is skipped."""
        while self._unacked:
            lease_id = self._unacked.pop(0)
            batch = self._api.redeliver(lease_id)
            if batch is not None:
                return batch
            self._services.progress(f"the API has lost the batch of lease {lease_id}; it is skipped")
            remaining = tuple(lease for lease in self._session.state.taken if lease != lease_id)
            self._session.write(taken=remaining)
        return None

    def _next_new(self) -> LeasedBatch | NoBatch:
        """The batch after the last recorded lease, even if it was served before and its response was lost."""
        last_lease = self._session.state.last_lease
        lost = self._api.redeliver(last_lease + 1) if last_lease else None
        batch = lost or self._api.next_batch()
        if isinstance(batch, NoBatch) or not last_lease:
            return batch
        missed = [self._api.redeliver(lease_id) for lease_id in range(last_lease + 1, batch.lease_id)]
        first, *self._prefetched = [*(skipped for skipped in missed if skipped is not None), batch]
        return first

    def make_step(self, step: int, leased: LeasedBatch) -> dict[str, float]:
        """Trains on the batch, publishes the weights and proves them; the metrics of the step."""
        began_s = time.monotonic()
        session, settings = self._session, self._settings
        batch = self._prepare(leased, step - 1)
        metrics = {**batch.metrics, "data/lease_id": float(leased.lease_id)}
        rate = settings.schedule.at(step)
        metrics["train/learning_rate"] = rate
        if batch.sequences:
            if session.proof is None:
                session.begin_proof(batch.sequences[0].tokens)
            metrics |= self._update.apply(
                batch.sequences,
                step,
                rate,
                session.audit,
                batch.present,
                lambda: session.begin_publish(step, read_probe=True),
            )
        if self._critic is not None:
            metrics |= self._critic.update(rate)
        session.publish(step)
        self._services.eval_watcher.record_published(step)
        if batch.sequences:
            metrics |= session.prove(pushed=rate > 0 and metrics.get("optim/grad_norm", 1.0) > 0)
        due = self._evaluation_due(step)
        if self._services.evaluate is not None and due:
            metrics |= self._evaluation(step)
        if self._services.preference is not None and due:
            metrics[PREFERENCE] = self._services.preference(session.client)
        metrics |= self._poll_evaluation()
        metrics["time/step_s"] = time.monotonic() - began_s
        # Of a run that is guarded the best checkpoint is decided by what the reward stands for.
        measures = (TRUE_REWARD, "reward/mean") if self._services.guard else ("reward/mean",)
        self._rewards += [metrics[name] for name in measures if name in metrics][:1]
        return metrics

    def _evaluation_due(self, step: int) -> bool:
        settings = self._settings
        is_checkpoint = settings.eval_checkpoints and self._session.checkpoint_due(step, settings.num_steps)
        return step % settings.eval_every == 0 or step >= settings.num_steps or is_checkpoint

    def _poll_evaluation(self) -> dict[str, float]:
        """The evaluation that the environment ran by itself, if there is a new one, with its step."""
        evaluation = self._services.eval_watcher.poll()
        if evaluation is None:
            return {}
        self._session.update_score(evaluation.step, evaluation.value)
        return {**evaluation.metrics, "eval/step": float(evaluation.step)}

    def _prepare(self, leased: LeasedBatch, step: int) -> TrainBatch:
        settings, groups = self._settings, leased.groups
        if self._services.teacher is not None:
            groups = add_teacher_logprobs(self._services.teacher, groups)
        if self._critic is not None:
            groups = self._critic.add_advantages(groups)
        batch = prepare(groups, settings.rules, step)
        self._batch_guard.check(batch)
        if not (settings.kl or settings.measure_kl) or not batch.sequences:
            return batch
        return with_penalty(batch, self._references(batch), self._present(batch, step), settings.kl)

    def _references(self, batch: TrainBatch) -> list[Sequence[float]]:
        """The logprobs under the reference; of a sequence that has them, its own."""
        client = self._session.client
        unscored = [sequence for sequence in batch.sequences if not sequence.ref_logprobs]
        tokens = [sequence.tokens for sequence in unscored]
        tails = [sequence.trained_tail for sequence in unscored]
        scored = iter(client.score(self._reference, tokens, tails) if unscored else ())
        return [sequence.ref_logprobs or next(scored) for sequence in batch.sequences]

    def _present(self, batch: TrainBatch, step: int) -> list[list[float]]:
        """The logprobs under the present weights at temperature 1. Those of a fresh sequence are its own."""
        if all(sequence.is_on_policy(step) for sequence in batch.sequences):
            return [list(sequence.logprobs) for sequence in batch.sequences]
        return self._session.client.forward([sequence.tokens for sequence in batch.sequences])

    def _checkpoint(self, step: int, metrics: dict[str, float]) -> None:
        """The best checkpoint is decided by evaluations of its own weights; without any, by the reward."""
        rewards, self._rewards = self._rewards, []
        reward = statistics.fmean(rewards) if rewards else None
        score = eval_score(metrics)
        if score is not None:
            self._count_evaluation(score)
        value = reward if score is None and self._services.evaluate is None else score
        if self._critic is not None:
            self._critic.save(step)
        self._session.checkpoint(step, value, self._unacked, evaluated=score is not None)
        if self._critic is not None:
            self._critic.drop_older(step)
        for lease_id in self._session.state.settled:
            self._api.acknowledge(lease_id)

    def _count_evaluation(self, score: float) -> None:
        """For early stopping: how many evaluations there were since the best one."""
        best = self._session.state.best_loss
        if best is None or score > best:
            self._session.update_state(best_loss=score, waited=0)
        else:
            self._session.update_state(waited=self._session.state.waited + 1)


def eval_score(metrics: Mapping[str, float]) -> float | None:
    """The score of an evaluation of this step's weights; None: they were not evaluated."""
    if "eval/step" in metrics:
        return None  # of the weights of that step, by the environment itself
    return next((metrics[name] for name in EVAL_SCORES if name in metrics), None)


def _identity(run: TrainingRunSpec, settings: RlTrainerConfig) -> JSONObject:
    return {
        "base_model": run.lora.base_model,
        "rank": run.lora.rank,
        "seed": run.lora.seed,
        "start": run.lora.start,
        "batch_size": settings.batch_size,
        "loss": settings.loss,
        **run.lora.changed_shape(),
        **({"reference": settings.reference} if settings.reference else {}),
        "baseline": "critic" if settings.critic else None,
    }


def _registration(run: TrainingRunSpec, settings: RlTrainerConfig, step: int) -> JSONObject:
    return {
        "wandb_group": settings.wandb_group or run.id,
        "wandb_project": settings.project,
        "batch_size": settings.batch_size,
        "max_token_len": settings.rules.max_tokens,
        "checkpoint_dir": str(run.folder),
        "save_checkpoint_interval": run.retention.every,
        "starting_step": step,
        "num_steps": settings.num_steps,
    }


def _progress_line(step: int, last: int, metrics: dict[str, float]) -> str:
    line = f"step {step}/{last}"
    if "reward/mean" in metrics:
        line += f"  reward {metrics['reward/mean']:.3f}"
    line += f"  signal {metrics['health/group_signal']:.0%}"
    if "train/loss" in metrics:
        line += f"  loss {metrics['train/loss']:+.4f}  gap {metrics['probe/gap']:.1e}"
    if TRUE_REWARD in metrics:
        line += f"  true {metrics[TRUE_REWARD]:.3f}"
    if "kl/reference" in metrics:
        line += f"  kl {metrics['kl/reference']:.3f}"
    return f"{line}  {metrics['time/step_s']:.2f} s"
