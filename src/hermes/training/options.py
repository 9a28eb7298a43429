"""The options of every trainer, declared once (`config/option.py`).

`hermes train` has them as flags, `hermes rl` has those of `RlFields` as the section `tinker` of a run
(`rl/config/fields.py`), under the same names, bounds and defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator

from hermes.config.option import Options, option, split_each, split_words
from hermes.data.preference.pairs import PreferenceSource
from hermes.training.data.advantages import Baseline
from hermes.training.preference.losses import DpoLoss
from hermes.training.schedule import default_rl_rate, parameters_of

_SMALL = 3e9
"""Parameters below which the defaults of an RL run are those for small models."""
OFFLINE_TOKENS = 2048
"""The longest sequence of a trainer on stored rows, if it is not set."""
PROJECT = "hermes"


@dataclass(frozen=True, slots=True)
class SizeDefaults:
    """Defaults of an RL run of a model of this size: hermes-agent's values for 8 billion
    parameters, and the same with smaller figures for small models."""

    learning_rate: float
    max_tokens: int
    num_steps: int
    group_size: int
    batch_size: int
    small: bool


def size_defaults(model: str) -> SizeDefaults:
    parameters = parameters_of(model)
    rate = default_rl_rate(parameters)
    if parameters is not None and parameters < _SMALL:
        return SizeDefaults(rate, 2048, 100, 8, 32, small=True)
    return SizeDefaults(rate, 9000, 2500, 16, 128, small=False)


class PolicyFields(Options):
    """The model and the size of its training: the fields that `hermes improve` shares with the trainers."""

    base_model: str = option("hermes/smollm2", "The model that is trained: bundled, hub name or folder.")
    lora_rank: int = option(32, "Rank of the adapter.", "--rank", former=("--lora-rank",), ge=1, le=512)
    seed: int = option(0, "Seed of the adapter, of the order of rows, and of sampling.", ge=0)
    learning_rate: float | None = option(
        None, "Peak learning rate of Adam; chosen by the model's size if unset.", gt=0, le=1e-1
    )


class RowLoopFields(Options):
    """How a trainer goes over stored rows."""

    epochs: int = option(1, "Passes over the rows.", ge=1)
    max_steps: int | None = option(None, "Stop after this many steps.", ge=1)
    batch_size: int = option(16, "Rows a step.", ge=1)


class AdapterFields(PolicyFields):
    """The adapter and its optimizer: the fields that all trainers and the section `tinker` share."""

    start_from: str = option(
        "",
        "Weights to begin with: the name of a run, the folder of a PEFT adapter, a tinker:// path, policy "
        "(the promoted one) or policy:ID; empty: those of the base model.",
        "--start",
        metavar="WEIGHTS",
    )
    lora_alpha: float = option(
        32.0, "The adapter's scale is alpha / rank; another one only at a Hermes engine.", gt=0
    )
    lora_targets: Annotated[list[Literal["attn", "mlp", "unembed"]], BeforeValidator(split_words)] = option(
        ["attn", "mlp"], "Parts of the model that have an adapter: attn, mlp, unembed.", min_length=1
    )
    schedule: Literal["constant", "linear", "cosine"] = option(
        "constant", "How the learning rate falls towards the last step."
    )
    warmup_steps: int = option(0, "Steps in which the learning rate rises.", ge=0)
    max_token_trainer_length: int | None = option(
        None,
        "Longest sequence trained on, in tokens; if unset 2048, and 9000 in RL from 3 billion parameters on.",
        "--max-tokens",
        ge=2,
        le=1 << 20,
    )
    save_checkpoint_interval: int = option(25, "Steps between checkpoints.", "--checkpoint-every", ge=1)
    wandb_project: str = option(
        PROJECT, "Project at W&B or trackio.", "--project", former=("--wandb-project",), min_length=1
    )


class RlFields(AdapterFields):
    """The fields that `hermes train grpo` and the section `tinker` share."""

    loss: Literal["importance_sampling", "ppo", "cispo", "gspo"] = option(
        "importance_sampling", "The policy loss."
    )
    advantage: Baseline = option(
        Baseline.MEAN, "What a reward is compared with, and by what the difference is divided."
    )
    kl_coefficient: float = option(
        0.0, "Weight of the KL penalty towards the reference; 0: none.", "--kl", ge=0, le=10
    )
    epochs: int = option(1, "Updates from one batch.", ge=1, le=16)
    clip: list[float] | None = option(
        None,
        "Bounds of the ratio, for ppo, gspo and cispo, such as 0.8 1.2; unset: the cap, or the engine's own.",
        min_length=2,
        max_length=2,
    )
    correction_cap: float = option(
        2.0, "Cap of the importance weight for sampler-trainer mismatch; 0: none. cispo's upper bound.", ge=0
    )
    proof: Literal["end", "warn"] = option(
        "end", "What a fault found by the proof of training does: it ends the run, or it is a warning."
    )
    eval_patience: int | None = option(
        None,
        "Evaluations without a new best that end the run; unset: none do.",
        "--patience",
        former=("--eval-patience",),
        ge=1,
    )
    distill: float = option(0.0, "Weight of the teacher's logprobs; 0: no teacher.", ge=0)
    reward_weight: float = option(1.0, "Weight of the scores; 0: only the teacher's logprobs train.", ge=0)
    teacher_url: str = option("", "The teacher: a Tinker API, or SGLang's /generate.", metavar="URL")
    teacher_model: str = option(
        "", "The teacher's name there, or its adapter; empty: what /generate serves.", metavar="NAME"
    )
    engine_dtype: Literal["auto", "float32", "bfloat16"] = option(
        "auto",
        "Number type of the base model in the run's own engine.",
        "--dtype",
        former=("--engine-dtype",),
    )
    engine_memory_gib: float | None = option(
        None,
        "Memory of the run's engine on a CPU, in GiB.",
        "--memory-gib",
        former=("--engine-memory-gib",),
        gt=0,
    )
    engine_kv_gib: float | None = option(
        None,
        "Memory of the run's engine for keys and values, in GiB.",
        "--kv-gib",
        former=("--engine-kv-gib",),
        gt=0,
    )
    rollout_table_every: int = option(
        10, "Steps between tables of sampled rollouts at W&B and trackio; 0: none.", hidden=True, ge=0
    )


class TrainOptions(AdapterFields):
    """The options that every command of `hermes train` has."""

    base_url: str | None = option(
        None,
        "Tinker service. Default: TINKER_BASE_URL, else the engine on this machine.",
        "--service",
        former=("--base-url",),
        metavar="URL|managed",
    )
    name: str | None = option(
        None, "Name of the run; a name that exists resumes it. Default: a new one.", metavar="NAME"
    )
    run_dir: Path | None = option(None, "Folder of the run; runs/NAME in the home if unset.", path="folder")
    policy_name: str | None = option(None, "An additional name for the newest weights.", metavar="NAME")
    keep: int = option(3, "Number of newest checkpoints to keep, beside the best.", ge=1)
    eval_every: int = option(10, "Steps between evaluations.", ge=1)
    extra_sinks: tuple[Literal["wandb", "wandb-offline", "tensorboard", "trackio"], ...] = option(
        (), "Where metrics go beside the store and metrics.jsonl; repeatable.", "--sink"
    )
    wandb_group: str | None = option(None, "W&B group; default: the run's name.", metavar="NAME", hidden=True)
    no_wandb: bool = option(False, "Send nothing to W&B, even if its key is set.")
    title: str | None = option(None, "The run's title in the sinks; default: its name.", metavar="NAME")

    @property
    def max_tokens(self) -> int:
        """The longest sequence trained on."""
        return self.max_token_trainer_length or OFFLINE_TOKENS


class RatingFields(Options):
    machine_ratings: bool = option(
        False, "Count ratings of machines, too, although people rated some of the selected trajectories."
    )


class OfflineOptions(RatingFields, RowLoopFields, TrainOptions):
    """The options that the trainers on stored rows share."""

    files: tuple[Path, ...] = option((), "", path="existing", argument=True)
    patience: int | None = option(None, "Evaluations without a new best that end the run.", ge=1)
    parser: str = option("hermes", "Format of tool calls.")
    eval_share: float = option(0.1, "Share of tasks held out for evaluation.", ge=0, le=0.9)
    everything: bool = option(False, "Store: also trajectories that did not complete.", "--all")


class SftOptions(OfflineOptions):
    eval_share: float = option(0.0, "Share of tasks held out for evaluation.", ge=0, le=0.9)


class VerdictOptions(OfflineOptions):
    """The options that the trainers on verdicts share."""

    eval_files: tuple[Path, ...] = option(
        (),
        "Rows to evaluate on, instead of a share of the tasks; repeatable.",
        "--eval-file",
        path="existing",
    )
    min_rows: int = option(8, "Least rows.", ge=1)


class PairFields(Options):
    """Which evidence makes preference pairs, for the trainers and for an export."""

    pairs_from: tuple[PreferenceSource, ...] = option(
        (),
        "Evidence that makes pairs, repeatable; the first that has any on two answers decides. "
        "Default: choice, rating, retry; an export also takes rewards.",
    )
    min_margin: float = option(0.0, "Least difference of ratings or rewards.", ge=0)


class PairOptions(PairFields, VerdictOptions):
    """The options that the trainers on preference pairs share."""


class PreferenceOptions(VerdictOptions):
    """The options that the trainers of policies on verdicts share."""

    reference: str | None = option(
        None,
        "What the policy is compared with: base, answers (the adapter that the answers came from), or "
        "weights as in --start. Default: --start, else base.",
        metavar="WEIGHTS",
    )
    beta: float = option(0.1, "Strength of the reference.", gt=0)
    replay_files: tuple[Path, ...] = option(
        (),
        "SFT rows of an earlier skill, trained beside the verdicts so that it is kept; repeatable.",
        "--replay",
        metavar="FILE",
        path="existing",
    )
    replay_weight: float = option(1.0, "Weight of the replayed rows' cross-entropy.", gt=0)


class DpoOptions(PairOptions, PreferenceOptions):
    loss: DpoLoss = option(
        DpoLoss.SIGMOID,
        "sigmoid is DPO; sigmoid_norm and simpo are length-normalised, simpo without a reference.",
    )
    label_smoothing: float = option(
        0.0, "Share of pairs whose label is assumed to be wrong (sigmoid, robust, simpo).", ge=0, lt=0.5
    )
    target_margin: float = option(
        0.5, "Margin that the loss simpo aims at.", "--margin", former=("--target-margin",), ge=0
    )
    sft_weight: float = option(0.0, "Weight of the chosen answers' cross-entropy.", ge=0)


class KtoOptions(PreferenceOptions):
    desirable_weight: float | None = option(
        None, "Weight of good answers; both classes count equally if unset.", hidden=True, gt=0
    )
    undesirable_weight: float | None = option(None, "Weight of bad answers.", hidden=True, gt=0)
    good_rating: float | None = option(
        None,
        "Answers rated at least this are good, all others bad. If unset, 4 and 5 are good, 1 and 2 bad, "
        "and 3 is left out.",
        gt=1,
        le=5,
    )


class RewardOptions(PairOptions):
    loss: Literal["bradley-terry", "pointwise"] = option(
        "bradley-terry", "bradley-terry learns from pairs, pointwise from ratings of 1 to 5."
    )
    margin: float = option(
        1.0, "How far apart the strongest preference is scored; weaker ones less. 0: no margin.", ge=0
    )
    centre: float = option(0.01, "Weight that keeps scores around 0.", hidden=True, ge=0)
    members: int = option(1, "Ensemble size.", ge=1, le=16)
    question: str | None = option(None, "What the model is asked about the answer.", metavar="TEXT")
    words: tuple[str, str] = option(("good", "bad"), "The two replies compared.", hidden=True)


class RlOptions(RlFields, TrainOptions):
    """The options of the trainers on live rollouts."""

    with_engine: bool = option(
        False,
        "Train at the managed service if TINKER_API_KEY is set, else with an engine started here. In both "
        "cases environments sample `policy` on the port of openai.base_url (8001).",
    )
    sampling_url: str | None = option(
        None, "With an engine: where environments sample `policy` (openai.base_url of --config).", hidden=True
    )
    group_size: int = option(
        0, "Without effect, for hermes-agent's command lines: it is the environment's setting.", hidden=True
    )
    api_url: str | None = option(
        None, "The trajectory API; default: RL_API_URL, else http://127.0.0.1:8000.", metavar="URL"
    )
    openai_port: int | None = option(
        None,
        "Serve the newest weights on this port over the OpenAI API, as `policy`.",
        former=("--face-port",),
        ge=0,
        le=65535,
    )
    api_patience: float = option(
        60.0, "Seconds that the trajectory API may be unreachable.", hidden=True, ge=0
    )
    env_patience: float = option(
        1800.0, "Seconds to wait for a batch while no environment is connected; then the run ends.", ge=1
    )
    lease: float = option(
        600.0, "Seconds after which the batch of a dead trainer is served again.", hidden=True, ge=1
    )
    num_steps: int | None = option(
        None, "Training steps; if unset 100, and 2500 from 3 billion parameters on.", ge=1
    )
    batch_size: int | None = option(
        None, "Sequences a step; if unset 32, and 128 from 3 billion parameters on.", ge=1
    )
    max_staleness: int = option(4, "Oldest policy that is trained on, in steps.", ge=0)
    eval_command: str | None = option(
        None, "Command that prints a JSON object; its 'reward' selects the best checkpoint.", metavar="CMD"
    )
    eval_environments: tuple[Path, ...] = option(
        (),
        "Environment whose held-out tasks evaluate the weights; needs --eval-config and --eval-folder; "
        "repeatable.",
        "--eval-environment",
        path="file",
        hidden=True,
    )
    eval_configs: tuple[Path, ...] = option(
        (),
        "Its configuration, with the server of the policy; one for each environment, in their order.",
        "--eval-config",
        path="file",
        hidden=True,
    )
    eval_folder: Path | None = option(
        None,
        "Folder of the environment's own evaluations, which select the best checkpoint.",
        path="folder",
    )

    @property
    def max_tokens(self) -> int:
        return self.max_token_trainer_length or size_defaults(self.base_model).max_tokens

    @property
    def steps(self) -> int:
        return self.num_steps or size_defaults(self.base_model).num_steps

    @property
    def sequences(self) -> int:
        """Sequences a step."""
        return self.batch_size or size_defaults(self.base_model).batch_size


class PpoOptions(RlOptions):
    """The same with the clipped loss of PPO."""

    loss: Literal["importance_sampling", "ppo", "cispo", "gspo"] = option("ppo", "The policy loss.")


class RlhfOptions(PpoOptions):
    """PPO against a reward model, with the processes that it needs."""

    reward_model: str = option(
        ...,
        "A reward model of `hermes train reward`, its folder, or the address of one that is served.",
        metavar="NAME",
    )
    kl_coefficient: float = option(
        # A reward that is learned is exploited without a penalty; 0.01 to 0.05 is usual.
        0.02,
        "Weight of the KL penalty towards the reference; 0: none.",
        "--kl",
        ge=0,
        le=10,
    )
    prompts: Path | None = option(
        None,
        "What to answer: JSONL, JSON, CSV or Parquet. Default: the stored trajectories that match.",
        path="file",
    )
    reference: str | None = option(
        None,
        "What the KL is measured from: base, or weights as in --start. Default: --start, else base.",
        metavar="WEIGHTS",
    )
    group_size: int = option(8, "Answers to a prompt.", former=("--rollouts-per-prompt",), ge=2)
    env_replicas: int = option(1, "Number of environment processes.", former=("--environments",), ge=1)
    max_turns: int = option(1, "Model calls in a rollout.", ge=1)
    answer_tokens: int = option(200, "Longest answer of one model call.", ge=1)
    toolsets: Annotated[tuple[str, ...], BeforeValidator(split_each)] = option(
        (), "Toolsets of the agent, separated by commas. Default: none.", former=("--toolset",)
    )
    system_prompt: str = option(
        "", "System prompt of every rollout.", "--system", former=("--system-prompt",)
    )
    temperature: float = option(1.0, "Sampling temperature of rollouts.", gt=0)
    true_reward: str = option(
        "",
        "Measures what the reward model stands for; it is reported and never trained on.",
        metavar="FILE.py:FUNCTION",
    )
    preferences: tuple[Path, ...] = option(
        (),
        "Pairs (trl-preference) on which agreement with people is measured; repeatable.",
        path="existing",
    )
    critic: bool = option(
        False,
        "The baseline is a critic adapter with the reward model's kind of read-out, which learns beside the "
        "policy; without it the baseline is the group's (--advantage).",
    )
    gae_lambda: float = option(
        0.95,
        "λ of the critic's advantages: 1 is the reward less the value; below it the critic counts more.",
        ge=0,
        le=1,
        hidden=True,
    )
    critic_rate: float | None = option(
        None, "Learning rate of the critic; the policy's if unset.", gt=0, hidden=True
    )
    no_early_stop: bool = option(False, "Go on although the run is over-optimised.")
