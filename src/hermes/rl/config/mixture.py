"""Several environments in one run: their shares of each batch, and a configuration for each.

The first environment decides what all share: group size, batch size, steps, model, and the addresses of the
run. Everything else is each environment's own. Weights become whole groups of each batch, at least one for
every environment, so that each batch has the same mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes.errors import UsageError
from hermes.rl.config.fields import find_field
from hermes.rl.config.resolve import Resolved, find_selection, resolve, with_edit

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSONObject

SHARED = (
    *("group_size", "batch_size", "total_steps", "tokenizer_name", "rollout_server_url", "use_wandb"),
    *("max_batches_offpolicy", "synchronous", "steps_per_eval", "worker_timeout"),
    "ensure_scores_are_not_same",
)
"""Fields of the section `env` that the environments of a run have in common."""
_FORM = "write NAME:WEIGHT, as in a:2"


@dataclass(frozen=True, slots=True)
class WeightedName:
    """An environment as the command line names it: NAME or NAME:WEIGHT."""

    name: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class MixedEnvironment:
    """One environment of a run that has several."""

    resolved: Resolved
    weight: float


def parse_weighted(reference: str) -> WeightedName:
    """UsageError if the weight is not a positive number."""
    name, colon, weight = reference.rpartition(":")
    if not colon:
        return WeightedName(reference)
    try:
        value = float(weight)
    except ValueError as error:
        raise UsageError(
            f"--env {reference}: '{weight}' is no weight", "write NAME:WEIGHT, as in a:2"
        ) from error
    if not 0 < value < float("inf"):
        raise UsageError(f"--env {reference}: a weight is a positive number", _FORM)
    return WeightedName(name, value)


def resolve_mixture(
    config: Config, names: Sequence[WeightedName], first: Resolved, edits: Sequence[tuple[str, Any]]
) -> list[MixedEnvironment]:
    """The environments of a run, `first` first. An edit holds for each that has the field; UsageError if none
    has it, or if an environment is named twice."""
    selections = [first.selection, *(find_selection(config, named.name) for named in names[1:])]
    labels = [selection.environment for selection in selections]
    if repeated := {label for label in labels if labels.count(label) > 1}:
        raise UsageError(
            f"--env {repeated.pop()} is named twice", "name each environment once, with its weight"
        )
    mixed = []
    unused = dict(enumerate(edits))
    for selection, named in zip(selections, names, strict=True):
        resolved = first if selection is first.selection else resolve(config, selection)
        for index, (field, value) in enumerate(edits):
            if _has_field(resolved, field):
                resolved = with_edit(config, resolved.selection, field, value, unlock=True)
                unused.pop(index, None)
        mixed.append(MixedEnvironment(resolved, named.weight))
    for field, _ in unused.values():
        find_field(field, first.fields)
    _check_shares(mixed)
    return mixed


def group_shares(weights: Sequence[float], groups: int) -> list[int]:
    """The groups of a batch that each environment sends: by weight, at least one, `groups` in all.

    Largest remainders; of equal ones the earlier environment's."""
    exact = [groups * weight / sum(weights) for weight in weights]
    shares = [max(1, int(share)) for share in exact]
    while sum(shares) != groups:
        step = 1 if sum(shares) < groups else -1
        candidates = [index for index, share in enumerate(shares) if step > 0 or share > 1]
        chosen = max(candidates, key=lambda index: (step * (exact[index] - shares[index]), -index))
        shares[chosen] += step
    return shares


def mixture_section(mixed: Sequence[MixedEnvironment]) -> list[JSONObject]:
    """The list `mixture` of a run's configuration: one entry for each environment, the first included.

    An entry of another than the first has its section `env`."""
    values = mixed[0].resolved.values
    group_size, batch_size = values["env.group_size"], values["env.batch_size"]
    shares = group_shares([entry.weight for entry in mixed], batch_size // group_size)
    entries = []
    for entry, groups in zip(mixed, shares, strict=True):
        selection = entry.resolved.selection
        section = entry.resolved.section("env") | {name: values[f"env.{name}"] for name in SHARED}
        section |= {
            "min_batch_allocation": groups * group_size / batch_size,
            "inference_weight": entry.weight,
        }
        entries.append(
            {
                "environment": selection.environment,
                "environment_file": selection.file_path,
                "evaluates": entry.resolved.evaluates,
                "weight": entry.weight,
                "groups": groups,
                "env": section,
            }
        )
    return entries


def _has_field(resolved: Resolved, name: str) -> bool:
    return any(f"{prefix}{name}" in resolved.fields for prefix in ("", "env.", "tinker.", "openai."))


def _check_shares(mixed: Sequence[MixedEnvironment]) -> None:
    values = mixed[0].resolved.values
    group_size, batch_size = values["env.group_size"], values["env.batch_size"]
    if batch_size // group_size < len(mixed):
        raise UsageError(
            f"a batch of {batch_size} sequences has {batch_size // group_size} groups of {group_size}: fewer "
            f"than the {len(mixed)} environments",
            f"--set batch_size={len(mixed) * group_size}, or more",
        )
