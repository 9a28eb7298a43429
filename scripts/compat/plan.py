"""Which of tinker-cookbook's loops are run, with which settings, and which check judges each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks import Check, learned, moved, on_policy, penalised, preferred, stale_by

STEPS = 3
RESUMED_STEPS = 8
RESUME_AT = 3
_ROWS = 64
_RENDERER = "qwen3_instruct"
"""ChatML, which is the bundled model's format."""
_RL = "tinker_cookbook.rl.train"
_ARITHMETIC = "tinker_cookbook.recipes.math_rl.arithmetic_env:ArithmeticDatasetBuilder"
_COMPARISONS = "tinker_cookbook.preference.preference_datasets:ComparisonBuilderFromJsonl"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run of the checks finds and leaves things."""

    model: str
    """Folder of the base model; the name by which the cookbook asks for it, too."""
    url: str
    data: Path
    loop_script: Path


@dataclass(frozen=True, slots=True)
class Loop:
    name: str
    command: tuple[str, ...]
    """What follows `python`; log_path is added."""
    check: Check
    steps: int = STEPS
    from_recipe: bool = False
    """The command is a recipe of the cookbook as it stands; else its loop, configured field by field."""


def loops(place: Place) -> tuple[Loop, ...]:
    """In the order in which they run; the first one's checkpoints are resumed from and taught from later."""
    arithmetic = _fields("dataset_builder", _arithmetic(place))
    streaming = _fields("stream_minibatch_config", {".groups_per_batch": "4", ".num_minibatches": "2"})
    cispo = ("loss_fn=cispo", "compute_post_kl=True")
    reference = f"kl_reference_config.base_model={place.model}"
    return (
        Loop("supervised", _supervised(place), learned("train_mean_nll"), RESUMED_STEPS, from_recipe=True),
        Loop("RL, sync", math_rl(place), on_policy, from_recipe=True),
        Loop("RL, async", math_rl(place, "max_steps_off_policy=2"), stale_by(2), from_recipe=True),
        Loop("RL, streaming minibatches", math_rl(place, *streaming), on_policy, from_recipe=True),
        Loop("RL, KL penalty", _rl(place, *arithmetic, "kl_penalty_coef=0.1", reference), penalised),
        Loop("RL, PPO, 2 substeps", _rl(place, *arithmetic, "loss_fn=ppo", "num_substeps=2"), moved),
        Loop("RL, CISPO, post-update KL", _rl(place, *arithmetic, *cispo), on_policy),
        Loop("RL, rollouts in 2 processes", _in_processes(_rl(place, *arithmetic)), on_policy),
        Loop("preference: DPO", _dpo(place), preferred),
        Loop("preference: comparison model", _preference_model(place), learned("train_mean_nll")),
        Loop("preference: pairwise RL", _shorter(place), on_policy, from_recipe=True),
    )


def distillations(place: Place, teacher: str) -> tuple[Loop, ...]:
    """Loops whose teacher is the sampler checkpoint `teacher`."""
    source = (
        f"dataset_configs.0.teacher_config.base_model={place.model}",
        f"dataset_configs.0.teacher_config.load_checkpoint_path={teacher}",
    )
    arithmetic = _fields("dataset_configs.0.dataset_builder", _arithmetic(place))
    lessons = {
        "": "tinker_cookbook.supervised.data:FromConversationFileBuilder",
        ".file_path": str(place.data / "lesson.jsonl"),
        **_common(place),
    }
    return (
        Loop(
            "distillation, on-policy",
            _loop(
                place,
                "tinker_cookbook.distillation.train_on_policy",
                *source,
                *arithmetic,
                "dataset_configs.0.groups_per_batch=4",
                "max_tokens=5",
            ),
            on_policy,
        ),
        Loop(
            "distillation, teacher's top 5",
            _loop(
                place,
                "tinker_cookbook.distillation.train_off_policy",
                *source,
                *_fields("dataset_configs.0.dataset_builder", lessons),
                "batch_size=4",
                "n_teacher_targets=5",
            ),
            learned("train/loss:sum"),
        ),
    )


def _supervised(place: Place) -> tuple[str, ...]:
    """Every row is the same, so that a step's loss says exactly which updates came before it."""
    return (
        "-m",
        "tinker_cookbook.recipes.chat_sl.train",
        *_shared(place, "role_colon"),
        f"dataset={place.data / 'lesson.jsonl'}",
        "batch_size=4",
        "max_length=128",
        "learning_rate=3e-4",
        "lr_schedule=constant",
        f"save_every={RESUME_AT}",
        "rolling_save_every=2",
        f"max_steps={RESUMED_STEPS}",
    )


def math_rl(place: Place, *more: str, steps: int = STEPS) -> tuple[str, ...]:
    return (
        "-m",
        "tinker_cookbook.recipes.math_rl.train",
        *_shared(place),
        "env=arithmetic",
        "groups_per_batch=4",
        "group_size=4",
        "learning_rate=1e-4",
        "save_every=2",
        f"max_steps={steps}",
        *more,
    )


def data() -> dict[str, list[Any]]:
    """The files that the loops read, by name."""
    question = [{"role": "user", "content": "What is 21 + 21?"}]
    lesson = {"messages": [*question, {"role": "assistant", "content": "It is 42, the answer."}]}
    comparison = {
        "prompt_conversation": question,
        "completion_A": [{"role": "assistant", "content": "It is 42."}],
        "completion_B": [{"role": "assistant", "content": "I do not know."}],
    }
    return {
        "lesson.jsonl": [lesson] * _ROWS,
        "comparisons.jsonl": [{"comparison": comparison, "label": "A"}] * _ROWS,
    }


def _shared(place: Place, renderer: str = _RENDERER) -> tuple[str, ...]:
    return (f"model_name={place.model}", f"renderer_name={renderer}", f"base_url={place.url}", "lora_rank=8")


def _loop(place: Place, module: str, *fields: str) -> tuple[str, ...]:
    kept = ("recipe_name=compat", "learning_rate=1e-4", "save_every=2", f"max_steps={STEPS}")
    return (str(place.loop_script), module, *_shared(place), *kept, *fields)


def _rl(place: Place, *fields: str) -> tuple[str, ...]:
    return _loop(place, _RL, "max_tokens=5", *fields)


def _in_processes(command: tuple[str, ...]) -> tuple[str, ...]:
    script, *rest = command
    return (script, "--processes", "2", *rest)


def _arithmetic(place: Place) -> dict[str, str]:
    return {
        "": _ARITHMETIC,
        ".batch_size": "4",
        ".group_size": "4",
        ".n_batches": "10",
        ".model_name_for_tokenizer": place.model,
        ".renderer_name": _RENDERER,
    }


def _common(place: Place) -> dict[str, str]:
    return {
        ".common_config.model_name_for_tokenizer": place.model,
        ".common_config.renderer_name": _RENDERER,
        ".common_config.max_length": "128",
        ".common_config.batch_size": "4",
    }


def _compared(place: Place, builder: str) -> tuple[str, ...]:
    comparisons = str(place.data / "comparisons.jsonl")
    source = {".comparison_builder": _COMPARISONS, ".comparison_builder.train_path": comparisons}
    return _fields("dataset_builder", {"": builder, **_common(place), **source})


def _dpo(place: Place) -> tuple[str, ...]:
    builder = "tinker_cookbook.preference.dpo_datasets:DPODatasetBuilderFromComparisons"
    return _loop(place, "tinker_cookbook.preference.train_dpo", *_compared(place, builder))


def _preference_model(place: Place) -> tuple[str, ...]:
    builder = "tinker_cookbook.preference.preference_datasets:ChatDatasetBuilderFromComparisons"
    return _loop(place, "tinker_cookbook.supervised.train", *_compared(place, builder))


def _shorter(place: Place) -> tuple[str, ...]:
    shared = [field for field in _shared(place) if not field.startswith(("base_url", "lora_rank"))]
    sizes = ("group_size=4", "batch_size=2", "max_tokens=12", f"max_steps={STEPS}")
    return ("-m", "tinker_cookbook.recipes.preference.shorter.train", *shared, *sizes)


def _fields(prefix: str, values: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{prefix}{name}={value}" for name, value in values.items())
