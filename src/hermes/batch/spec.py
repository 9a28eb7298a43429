"""The specification of a run: fixed at its first start, stored with its data, compared when it is continued.

A run continued with other settings would mix two datasets in one file. So the specification of the first
start is stored in `run.json`, and a later start that differs is an error that names the changes, unless they
are accepted, which is recorded too.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from hermes.core import JSONObject, new_id, parse_object
from hermes.disk.filelock import FileLock
from hermes.disk.files import atomic_write, ensure_dir, read_text
from hermes.errors import ConfigError, UsageError


@dataclass(frozen=True, slots=True)
class Filters:
    """Quality filters; removed samples are written to filtered.jsonl with the reason."""

    require_reasoning: bool = False
    drop_unknown_tools: bool = False
    only_completed: bool = False
    min_turns: int | None = None
    max_turns: int | None = None
    min_reward: float | None = None
    dedupe: bool = False


@dataclass(frozen=True, slots=True)
class RunSpec:
    name: str
    dataset: str
    dataset_digest: str
    model: str
    base_url: str | None = None
    base_model: str | None = None
    """Where `model` names trained weights of this home: their base, whose tools and examples suit them."""
    distribution: str | None = None
    """Toolsets are drawn per sample from it; None: `toolsets`."""
    toolsets: tuple[str, ...] | None = None
    """None: the model's default ones."""
    missing_toolsets: tuple[str, ...] = ()
    """Toolsets that could not be used at the start and that the run was allowed to omit."""
    samples_per_prompt: int = 1
    seed: int | None = None
    """If set, a seed derived from it per sample is sent to the model; the toolset draw uses 0 otherwise."""
    settings: JSONObject = field(default_factory=dict)
    """Dotted settings from the flags: limits, sampling, sandbox."""
    system_prompt: str | None = None
    """Shown to the model, left out of the dataset."""
    texts: JSONObject = field(default_factory=dict)
    """The texts of the policy that answers, by name."""
    prefill: tuple[JSONObject, ...] = ()
    """Messages shown before the prompt, left out of the dataset."""
    reward: str | None = None
    """path/to/file.py:function."""
    trials: JSONObject | None = None
    """This opens and scores the rows; see batch.trial."""
    filters: Filters = Filters()
    accepted: tuple[str, ...] = ()
    """Changes that were accepted on a later start, as 'field: old -> new'."""
    id: str = field(default_factory=new_id)
    """Tells the run from another one of the same name; stays as it is when the run is continued."""

    def to_json(self) -> JSONObject:
        return asdict(self)

    @classmethod
    def from_json(cls, data: JSONObject) -> RunSpec:
        lists = {name: tuple(data.get(name, ())) for name in ("prefill", "accepted", "missing_toolsets")}
        toolsets = tuple(data["toolsets"]) if data["toolsets"] is not None else None
        filters = Filters(**data["filters"])
        return cls(**{"id": "", **data, **lists, "toolsets": toolsets, "filters": filters})


def differences(old: RunSpec, new: RunSpec) -> list[str]:
    """The changes, as 'field: old -> new'; a dataset's path may change while its content does not."""
    ignored = {"dataset", "accepted", "id"}
    pairs = [
        (spec_field.name, getattr(old, spec_field.name), getattr(new, spec_field.name))
        for spec_field in fields(RunSpec)
    ]
    return [
        f"{name}: {_short(before)} -> {_short(after)}"
        for name, before, after in pairs
        if name not in ignored and before != after
    ]


@contextmanager
def open_run(folder: Path, spec: RunSpec, *, accept_changes: bool) -> Iterator[RunSpec]:
    """Starts the run, or continues it; yields the specification now in force.

    Until the block ends no other process can open the run.
    """
    with hold_run(folder):
        yield _write_spec(folder, spec, accept_changes=accept_changes)


def _write_spec(folder: Path, spec: RunSpec, *, accept_changes: bool) -> RunSpec:
    path = folder / "run.json"
    if path.exists():
        old = load_spec(folder)
        changed = differences(old, spec)
        if changed and not accept_changes:
            raise UsageError(
                f"the run '{spec.name}' was started differently: {'; '.join(changed)}",
                "choose another --run-name, or add --accept-changes to continue with the new settings",
            )
        spec = replace(spec, id=old.id or spec.id, accepted=(*old.accepted, *changed))
    try:
        atomic_write(path, json.dumps(spec.to_json(), indent=2) + "\n")
    except ConfigError as error:
        hint = "choose another --output-dir, or free space and make that one writable"
        raise UsageError(error.message, hint) from error
    return spec


def load_spec(folder: Path) -> RunSpec:
    path = folder / "run.json"
    text = read_text(path)
    if text is None:
        raise UsageError(f"there is no run in {folder}", "see 'hermes batch status'")
    try:
        return RunSpec.from_json(parse_object(text))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a run's specification: {error}", "move the folder aside") from error


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextmanager
def hold_run(folder: Path) -> Iterator[None]:
    """Holds the run in `folder` until the block ends; UsageError if another process has it."""
    path = folder / "journal" / "lock"
    lock = FileLock(path)
    try:
        ensure_dir(path.parent)
        if not lock.acquire(blocking=False):
            raise UsageError(
                f"the run in {folder} is in use by {_holder(path)}",
                f"watch it: hermes batch status {folder.name} --output-dir {folder.parent}; "
                "once that process has ended, the same command continues the run",
            )
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since_s": int(time.time())}
        path.write_text(json.dumps(holder))
    except (ConfigError, OSError) as error:
        lock.release()
        message = (
            error.message if isinstance(error, ConfigError) else f"cannot write {path}: {error.strerror}"
        )
        hint = "choose another --output-dir, or free space and make that one writable"
        raise UsageError(message, hint) from error
    try:
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    try:
        facts = parse_object(read_text(path) or "")
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts["since_s"]))
        return f"process {facts['pid']} on {facts['host']} since {since}"
    except (ValueError, KeyError, TypeError):  # it has the lock and has not written its name yet
        return "another process"
