"""The options of `hermes batch`, declared once (`config/option.py`).

Imports nothing slow: the command starts its first worker before it loads its other modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from hermes.config.option import Options, option, split_words
from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.core import JSONObject

_SETTINGS = {
    "max_turns": "limits.max_turns",
    "timeout": "limits.timeout_s",
    "max_tokens": "sampling.max_tokens",
    "temperature": "sampling.temperature",
    "reasoning_effort": "sampling.reasoning_effort",
    "sandbox": "sandbox.backend",
}


class RunFolder(Options):
    """Where the runs of a batch are."""

    output_dir: Path = option(Path("data"), "Where the folders of runs are.")


class HarborPlaceOptions(Options):
    """Where tasks of Harbor run, for every command and for the environment `harbor`."""

    place: Literal["auto", "bubblewrap", "container"] = option(
        "auto",
        "Where Harbor tasks run; auto: bubblewrap if a task's Dockerfile allows that, else a container.",
        "--env.place",
    )
    network: Literal["none", "task"] = option(
        "none", "Network of Harbor tasks; task: what each task asks for.", "--env.network"
    )
    bases: Annotated[list[str], BeforeValidator(split_words)] = option(
        [],
        "Base images that this machine's own system may stand in for.",
        "--env.bases",
        metavar="PATTERN,…",
    )
    wheels: str | None = option(
        None, "Folder of wheels that pip installs from inside Harbor tasks.", "--env.wheels", metavar="FOLDER"
    )

    def place_values(self) -> JSONObject:
        return self.model_dump(include=set(HarborPlaceOptions.model_fields))


class HarborTaskOptions(HarborPlaceOptions):
    """The same with which of a folder's tasks are used."""

    unsound: bool = option(
        False, "Also use Harbor tasks that failed 'hermes env check harbor'.", "--env.unsound"
    )


class BatchOptions(RunFolder, HarborTaskOptions):
    dataset_file: str | None = option(
        None, "JSONL, JSON, CSV or Parquet file, or a hub dataset (name or name:split).", metavar="FILE"
    )
    harbor: Path | None = option(
        None,
        "Folder of Harbor tasks, instead of a dataset; their own tests score them.",
        path="folder",
        metavar="FOLDER",
    )
    run_name: str | None = option(None, "Names the output folder; the same name continues the run.")
    model: str | None = option(
        None,
        "Model to use instead of the configured one: see 'hermes models'.",
        "-m",
        "--model",
        metavar="NAME",
    )
    base_url: str | None = option(
        None, "Any OpenAI-compatible server; without --model, the model it serves.", metavar="URL"
    )
    distribution: str | None = option(None, "Draw toolsets per sample; see 'hermes tools --distributions'.")
    toolsets: str | None = option(
        None, "The same toolsets for every sample; 'none' for no tools.", metavar="A,B"
    )
    allow_missing_toolsets: bool = option(
        False,
        "Omit named toolsets, and those that a distribution is about, if they cannot be used here.",
    )
    samples_per_prompt: int = option(1, "Attempts at each row.", ge=1)
    seed: int | None = option(
        None, "Makes toolset draws and, if the server supports it, sampling reproducible."
    )
    max_samples: int | None = option(
        None, "Only the first N rows.", "--limit", former=("--max-samples",), ge=1
    )
    num_workers: int = option(4, "Worker processes.", ge=1)
    concurrency: int = option(256, "Samples in flight.", ge=1)
    executor: Literal["process", "ray"] = option(
        "process", "Where workers run; ray is the same as --ray local.", hidden=True
    )
    ray_address: str | None = option(
        None,
        "Run the workers on this Ray cluster; local: on one that is started on this machine.",
        "--ray",
        former=("--ray-address",),
        metavar="HOST:PORT|local",
    )
    ray_insecure: bool = option(False, "Also use a cluster that requires no token.")
    max_turns: int = option(10, "Most model calls of a sample.", ge=1)
    timeout: float | None = option(None, "Time limit of a sample, in seconds.")
    max_tokens: int | None = option(None, "Maximum length of one completion.", ge=1)
    temperature: float | None = option(None, "Sampling temperature; the server's own if unset.")
    max_cost: float | None = option(
        None, "Budget of the run in US dollars, over all its starts; needs prices."
    )
    max_tries: int = option(3, "Attempts at a sample after infrastructure failures.", ge=1)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"] | None = (
        option(None, "How long a reasoning model thinks; none: it does not.")
    )
    reasoning_disabled: bool = option(False, "The same as --reasoning-effort none.", hidden=True)
    ephemeral_system_prompt: str | None = option(
        None,
        "System prompt that is sent to the model but left out of the dataset.",
        "--system",
        former=("--ephemeral-system-prompt",),
        metavar="TEXT",
    )
    prefill_messages_file: Path | None = option(
        None, "JSON list of messages that are sent but left out of the dataset.", path="file"
    )
    providers: str | None = option(
        None,
        "OpenRouter routing: providers to use, or OpenRouter's whole `provider` object, such as "
        '{"order": ["A"], "ignore": ["B"], "sort": "price"}.',
        metavar="A,B|JSON",
    )
    reward: str | None = option(
        None,
        "Scores each finished trajectory. Rows with 'expected' are scored by exact match if unset.",
        metavar="FILE.py:FUNCTION",
    )
    require_reasoning: bool = option(
        False, "Exclude samples without reasoning (filters write to filtered.jsonl)."
    )
    drop_unknown_tools: bool = option(False, "Exclude samples that call a tool that does not exist.")
    only_completed: bool = option(False, "Exclude samples that a limit ended.")
    keep_min_turns: int | None = option(
        None, "Exclude samples with fewer turns.", "--min-turns", former=("--keep-min-turns",), ge=1
    )
    keep_max_turns: int | None = option(None, "Exclude samples with more turns.", ge=1)
    min_reward: float | None = option(None, "Exclude samples below this reward.")
    dedupe: bool = option(False, "Exclude repeated conversations.")
    sandbox: str | None = option(None, "local, bubblewrap or docker.", metavar="NAME")
    resume: bool = option(False, "Require that the run exists; an existing run is continued in any case.")
    accept_changes: bool = option(False, "Continue a run although its settings or dataset changed.")
    list_distributions: bool = option(False, "The same as 'hermes tools --distributions'.", hidden=True)
    api_key: str | None = option(None, "Refused: other users can read a command line.", hidden=True)
    batch_size: int | None = option(None, "Without effect: samples are dispatched singly.", hidden=True)
    verbose: bool = option(False, "Without effect, as in hermes-agent's command lines.", hidden=True)
    log_prefix_chars: int | None = option(None, "Without effect.", hidden=True)

    @property
    def name(self) -> str:
        """The run's name; UsageError if it has none, or one that names no folder."""
        name = self.run_name
        if not name:
            raise UsageError("--run-name is missing", "see 'hermes batch --help'")
        if name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
            raise UsageError(f"'{name}' cannot name a run", "use letters, digits, '-', '_' and '.'")
        return name

    @property
    def dataset(self) -> str:
        if self.harbor is not None:
            return str(self.harbor)
        if not self.dataset_file:
            raise UsageError("--dataset-file is missing, or --harbor", "see 'hermes batch --help'")
        return self.dataset_file

    @property
    def trials(self) -> JSONObject | None:
        """This opens and scores the rows; see batch.trial."""
        if self.harbor is None:
            return None
        return {"kind": "harbor", **self.place_values()}

    @property
    def uses_ray(self) -> bool:
        return self.executor == "ray" or self.ray_address is not None

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.output_dir / self.name

    def settings(self) -> dict[str, Any]:
        """The dotted settings that the flags stand for."""
        flags = {key: getattr(self, name) for name, key in _SETTINGS.items()}
        settings = {key: value for key, value in flags.items() if value is not None}
        if self.reasoning_disabled:
            settings["sampling.reasoning_effort"] = "none"
        return settings

    def provider_routing(self) -> JSONObject:
        """OpenRouter's `provider` object; empty without --providers."""
        if not self.providers:
            return {}
        if not self.providers.lstrip().startswith("{"):
            return {"only": [name.strip() for name in self.providers.split(",")]}
        try:
            routing: JSONObject = json.loads(self.providers)
        except ValueError as error:
            raise UsageError(
                f"--providers is no JSON object: {error}", '{"order": ["A"], "sort": "price"}'
            ) from error
        return routing
