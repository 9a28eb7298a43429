"""From the options of `hermes batch` to the specification of its run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from hermes.batch.options import BatchOptions
from hermes.batch.spec import Filters, RunSpec, load_spec
from hermes.batch.tasks import Dataset
from hermes.config.load import Config
from hermes.config.providers import resolve_model
from hermes.core import JSONObject, Role
from hermes.disk.files import read_text
from hermes.errors import UsageError
from hermes.models.local.model import DEFAULT_MAX_TOKENS
from hermes.models.usage import price_at, price_of
from hermes.tools import distributions
from hermes.tools.registry import check_toolset, unusable_toolsets

NO_TOOLSETS = ("none",)


def with_grader(options: BatchOptions, dataset: Dataset) -> BatchOptions:
    """Where every row says what is expected, answers are scored by exact match unless a function is named.

    A run that was started without scoring continues without it.
    """
    unscored = [row for row in dataset.rows if row.reward is None]
    started = (options.folder / "run.json").exists() and load_spec(options.folder).reward is None
    if options.reward is not None or started or not unscored:
        return options
    if any(row.expected is None for row in unscored):
        return options
    from hermes.batch import exact

    return options.model_copy(update={"reward": f"{exact.__file__}:{exact.grader_name()}"})


def make_spec(
    options: BatchOptions,
    dataset: Dataset,
    config: Config,
    model: str,
    base_url: str | None,
    report: Callable[[str], None],
    base_model: str | None = None,
) -> RunSpec:
    """The specification of a run with `model`, a provider's model or the one that `base_url` serves; or, with
    `base_model`, weights of this home that stand on that one.

    `report` is called with what the run goes on without.
    """
    settings = options.settings()
    name, price = model, price_of(config.settings, model)
    if base_model is not None and config.settings.sampling.max_tokens is None:
        settings["sampling.max_tokens"] = DEFAULT_MAX_TOKENS  # as where they answer in a chat
    if base_model is None:
        target = resolve_model(config.settings, config.environ, model, base_url)
        name, price = target.name, price_at(config.settings, target)
        if routing := options.provider_routing():
            settings[f"providers.{target.provider}.base_url"] = target.base_url
            settings[f"providers.{target.provider}.extra_body"] = {"provider": routing}
    if options.max_cost is not None and price is None:
        raise UsageError(
            f"--max-cost cannot be kept: the price of {name} is unknown",
            f'state it in config.yaml, in US dollars per million tokens: prices: {{"{name}": '
            "{input: …, output: …}}",
        )
    if options.distribution and options.toolsets:
        raise UsageError("--distribution and --toolsets exclude each other", "choose one")
    toolsets = parse_toolsets(options.toolsets)
    return RunSpec(
        name=options.name,
        dataset=options.dataset,
        dataset_digest=dataset.digest,
        model=model,
        base_url=base_url,
        base_model=base_model,
        distribution=options.distribution,
        toolsets=toolsets,
        missing_toolsets=_missing_toolsets(config, options, toolsets, report),
        samples_per_prompt=options.samples_per_prompt,
        seed=options.seed,
        settings=settings,
        system_prompt=options.ephemeral_system_prompt,
        texts=dict(config.texts),
        prefill=read_prefill(options.prefill_messages_file),
        reward=options.reward,
        trials=options.trials,
        filters=Filters(
            require_reasoning=options.require_reasoning,
            drop_unknown_tools=options.drop_unknown_tools,
            only_completed=options.only_completed,
            min_turns=options.keep_min_turns,
            max_turns=options.keep_max_turns,
            min_reward=options.min_reward,
            dedupe=options.dedupe,
        ),
    )


def _missing_toolsets(
    config: Config,
    options: BatchOptions,
    toolsets: tuple[str, ...] | None,
    report: Callable[[str], None],
) -> tuple[str, ...]:
    """Requested toolsets that cannot be used here, which the run leaves out and records.

    UsageError where --toolsets names them, or where a distribution loses all its most probable ones and with
    them its point; --allow-missing-toolsets goes on there too.
    """
    essential: set[str] = set()
    source, names = "--toolsets", toolsets if toolsets and toolsets != NO_TOOLSETS else ()
    if name := options.distribution:
        percents = distributions.resolve(name, config.settings.distributions)
        names = tuple(toolset for toolset, percent in percents.items() if percent)
        essential = {toolset for toolset in names if percents[toolset] == max(percents.values())}
        source = f"the distribution '{name}'"
    reasons = unusable_toolsets(names, config.settings, config.environ)
    if "memory" in names:
        reasons["memory"] = "it needs a person who sees what is remembered; use it in chat"
    if not reasons:
        return ()
    listing = "; ".join(f"{toolset} ({reason})" for toolset, reason in reasons.items())
    if len(reasons) == len(names):
        raise UsageError(f"no toolset of {source} can be used here: {listing}", "configure one of them")
    pointless = essential <= reasons.keys()
    if pointless and not options.allow_missing_toolsets:
        raise UsageError(
            f"{source} names toolsets that cannot be used here: {listing}",
            "configure them, or add --allow-missing-toolsets to omit them",
        )
    report(f"{source}: going on without {listing}; run.json records it as missing_toolsets")
    return tuple(reasons)


def parse_toolsets(text: str | None) -> tuple[str, ...] | None:
    """The toolsets of a list; `none` stands for no tools, and None for the model's default ones."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return NO_TOOLSETS if names == ["none"] else tuple(check_toolset(name) for name in names)


def read_prefill(path: Path | None) -> tuple[JSONObject, ...]:
    """The messages of a file; UsageError if it holds anything else."""
    if path is None:
        return ()
    text = read_text(path)
    if text is None:
        raise UsageError(f"there is no file {path}", "correct --prefill-messages-file")
    try:
        messages = [(Role(row["role"]), row["content"]) for row in json.loads(text)]
        if wrong := [content for _, content in messages if not isinstance(content, str)]:
            raise TypeError(f"the content of a message is no text: {str(wrong[0])[:100]}")
        for _, content in messages:
            content.encode()
        return tuple({"role": role.value, "content": content} for role, content in messages)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a list of messages: {error!r}", 'write [{"role": "user", "content": "…"}, …]'
        ) from error
