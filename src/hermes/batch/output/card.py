"""The dataset card of a run (README.md): what made it, what is in it, how to load it. Only facts.

Nothing that identifies the machine goes in: files are named without their folders, and endpoints and
keys not at all. The licence is for whoever publishes the data to set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import PurePath

from hermes import __version__
from hermes.batch.spec import RunSpec
from hermes.core import JSON, JSONObject, canonical_json, content_hash
from hermes.data.export.card import code, counts, front_matter, plain, table
from hermes.data.formats.batch import COLUMNS

PARQUET_FOLDER = "parquet"
_TAGS = ("hermes", "agent", "tool-use", "trajectories", "sharegpt")
_FILE_KINDS = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
_SHOWN_SETTINGS = ("limits.", "sampling.", "sandbox.")


def render(spec: RunSpec, statistics: JSONObject, *, with_parquet: bool) -> str:
    """`statistics` as in statistics.json."""
    parts = [
        front_matter(spec.name, statistics["samples"]["done"], _TAGS, _data_files(with_parquet)),
        f"# {plain(spec.name)}",
        "Trajectories of an agent at work, one row each: every turn of the conversation, with tool calls and"
        " their results, and how it ended.",
        "## What made it",
        table(("", ""), [(name, code(value)) for name, value in _origin(spec).items()]),
        "## What is in it",
        *_contents(spec, statistics),
        "## Secrets and licence",
        _redaction(statistics),
        "Licence: unknown: set it before publishing.",
        "## Columns",
        table(("column", "kind", "meaning"), [(f"`{c.name}`", c.kind, c.meaning) for c in COLUMNS]),
        "`trajectories.jsonl` has the same rows as JSON, with `tool_stats` and `unknown_tools` as objects by"
        " tool and `metadata` as an object.",
        "## How to load it",
        _loading(with_parquet),
    ]
    return "\n\n".join(parts) + "\n"


def spec_digest(spec: RunSpec) -> str:
    """Equal for runs that were started alike."""
    return content_hash(canonical_json({name: v for name, v in spec.to_json().items() if name != "id"}))


def _data_files(with_parquet: bool) -> list[tuple[str, str]]:
    return [("train", f"{PARQUET_FOLDER}/*.parquet")] if with_parquet else []


def _origin(spec: RunSpec) -> dict[str, JSON]:
    """The facts of the run's making; None where it does not apply."""
    settings = {key: value for key, value in spec.settings.items() if key.startswith(_SHOWN_SETTINGS)}
    reward_file, _, function = (spec.reward or "").rpartition(":")
    toolsets = "drawn per sample" if spec.distribution else "the model's default"
    return {
        "hermes": __version__,
        "model": spec.model,
        "distribution": spec.distribution,
        "toolsets": ", ".join(spec.toolsets) if spec.toolsets else toolsets,
        "toolsets it went on without": ", ".join(spec.missing_toolsets) or None,
        "seed": spec.seed,
        "samples per prompt": spec.samples_per_prompt,
        "settings given": ", ".join(f"{key}={json.dumps(settings[key])}" for key in sorted(settings)) or None,
        "system prompt of its own": f"{len(spec.system_prompt)} characters" if spec.system_prompt else None,
        "prefilled messages": len(spec.prefill) or None,
        "reward": f"{PurePath(reward_file).name}:{function}" if spec.reward else None,
        "tasks": spec.trials and "folders of Harbor, scored by their own tests",
        "dataset": PurePath(spec.dataset).name if spec.trials else _dataset_name(spec.dataset),
        "dataset digest": spec.dataset_digest,
        "specification digest": spec_digest(spec),
        "settings changed on the way": ", ".join(change.partition(":")[0] for change in spec.accepted)
        or None,
    }


def _contents(spec: RunSpec, statistics: JSONObject) -> Iterable[str]:
    samples, tokens = statistics["samples"], statistics["tokens"]
    cost = statistics["cost_usd"]
    prompt = tokens["input_tokens"] + tokens["cached_input_tokens"] + tokens["cache_write_tokens"]
    completion = tokens["output_tokens"] + tokens["reasoning_tokens"]
    reasoning = statistics["reasoning_statistics"]
    facts: list[tuple[str, JSON]] = [
        ("rows", samples["done"]),
        ("prompts", statistics["total_prompts"]),
        ("samples planned", samples["planned"]),
        ("kept aside by filters (`filtered.jsonl`)", samples["filtered"]),
        ("failed, still owed (`failed.jsonl`)", samples["failed"]),
        ("not run yet", samples["not_run"]),
        ("input lines that could not be used (`bad_rows.jsonl`)", statistics["bad_rows"]),
        ("tokens", f"{prompt} in, {completion} out"),
        ("cost", "unknown" if cost is None else f"{cost:.4f} US dollars"),
        (
            "assistant turns with reasoning",
            f"{reasoning['turns_with_reasoning']} of {reasoning['total_assistant_turns']}",
        ),
    ]
    if statistics["reward"] and statistics["reward"]["mean"] is not None:
        reward = statistics["reward"]
        facts.append(("mean reward", f"{reward['mean']:.4g} over {reward['count']}"))
    yield table(("", ""), [(name, code(value)) for name, value in facts])
    yield "The counts below are over all finished samples, kept aside or not. More: `statistics.json`."
    yield _counts("how it ended", statistics["outcomes"])
    yield _filters(spec, statistics["filtered"])
    if statistics["failed"]:
        yield _counts("failed because of", statistics["failed"])


def _filters(spec: RunSpec, removed: Mapping[str, int]) -> str:
    switches = [
        name if value is True else f"{name}={value:g}"
        for name, value in asdict(spec.filters).items()
        if value is not None and value is not False
    ]
    on = ", ".join(f"`{switch}`" for switch in switches) or "none"
    return f"Filters: {on}." + (f"\n\n{_counts('kept aside because', removed)}" if removed else "")


def _redaction(statistics: JSONObject) -> str:
    count = statistics["redacted_rows"]
    return (
        "Before anything was written, the values of keys and other secrets in Hermes's configuration were"
        f" replaced by `[REDACTED:NAME]`. Finished samples with such a mark: {count}. Nothing else was looked"
        " for: what a tool read or a model wrote may be private in other ways."
    )


def _loading(with_parquet: bool) -> str:
    code = 'from datasets import load_dataset\n\nrows = load_dataset("path/to/this/folder", split="train")'
    if not with_parquet:
        code = "import json\n\nrows = [json.loads(line) for line in open('trajectories.jsonl')]"
    return f"```python\n{code}\n```"


def _dataset_name(source: str) -> str:
    path = PurePath(source)
    return path.name if path.suffix.lower() in _FILE_KINDS else source


def _counts(title: str, numbers: Mapping[str, int]) -> str:
    return counts(title, numbers, "samples")
