"""Policies by key: frozen weights that can be sampled, a few in memory and the rest on disk.

A key is the id of an ephemeral sampler, or the path and creation time of a checkpoint. A snapshot is added as
a reference, without a copy. The SDK does not close its samplers, so above a number of policies in memory the
least recently used one without running samples is written to a folder and dropped from memory; it is loaded
again when it is sampled. A key that is acquired refers to the same weights until it is released, even if its
checkpoint is replaced or deleted. Of weights that are no checkpoint, or no longer one, only MAX_ON_DISK are
kept so: a client that opens a sampler at every step would fill the disk. Older ones are dropped, and a
request for them fails.

Saving weights for sampling with user_metadata {"alias": NAME} makes the alias NAME refer to those weights.
The change is immediate and holds for every protocol; requests in progress finish on the weights they started
with. After a restart each alias refers to the newest of its checkpoints on disk. Weights without a checkpoint
end with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from hermes.engine.checkpoints.store import SAMPLER_WEIGHTS, Checkpoint, CheckpointPath, CheckpointStore
from hermes.engine.types import EngineUserError

if TYPE_CHECKING:
    from hermes.engine.info import EngineInterface


MAX_IN_MEMORY = 8
MAX_ON_DISK = 32
"""Weights without a checkpoint that are written to disk, besides those in memory."""
LATEST_POLICY = "policy"
"""The alias of the newest weights that any run has saved for sampling."""


@dataclass(slots=True, eq=False)
class _PolicyRef:
    policy_id: str | None
    """None: not in memory."""
    folder: Path | None
    """Where the weights can be loaded from; None: in memory only."""
    checkpoint: Checkpoint | None = None
    """Whose folder it is: the checkpoint store deletes and replaces it. None: the folder is ours."""
    references: int = 0
    aliases: int = 0
    """Aliases that refer to the weights now; such weights are never dropped."""
    running: int = 0
    """Samples in progress."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the weights move between memory and disk."""


class Policies:
    """Belongs to the event loop."""

    def __init__(self, engine: EngineInterface, store: CheckpointStore, offload_dir: Path) -> None:
        self._engine = engine
        self._store = store
        self._offload_dir = offload_dir
        self._refs: dict[str, _PolicyRef] = {}
        """Least recently used first."""
        self._replacements: WeakValueDictionary[CheckpointPath, asyncio.Lock] = WeakValueDictionary()
        """Locks that are in use."""
        shutil.rmtree(offload_dir, ignore_errors=True)

    def add_snapshot(self, key: str, policy_id: str) -> None:
        """Takes over a snapshot that is in memory only."""
        self._refs[key] = _PolicyRef(policy_id, None)

    def add_checkpoint(self, checkpoint: Checkpoint, policy_id: str) -> None:
        """Takes over the snapshot that the checkpoint was written from."""
        key = policy_key(checkpoint)
        ref = self._refs.get(key)
        if ref is None:
            self._refs[key] = _PolicyRef(policy_id, self._store.folder(checkpoint.path), checkpoint)
        elif ref.policy_id is None and not ref.lock.locked():  # its path was resolved since the commit
            ref.policy_id = policy_id
        else:
            self._engine.drop_policy(policy_id)

    def checkpoint_key(self, path: CheckpointPath) -> str:
        """The key of the checkpoint that is at the path now. EngineUserError: there is none."""
        checkpoint = self._store.find(path)
        key = policy_key(checkpoint)
        if key not in self._refs:
            self._refs[key] = _PolicyRef(None, self._store.folder(path), checkpoint)
        return key

    def acquire(self, key: str, *, alias: bool = False) -> None:
        """Keeps the policy until `release`. `alias`: for a name that moves to newer weights."""
        self._refs[key].references += 1
        self._refs[key].aliases += alias

    def release(self, key: str, *, alias: bool = False) -> None:
        self._refs[key].references -= 1
        self._refs[key].aliases -= alias
        self._drop_unused(key)

    def replacement(self, path: CheckpointPath) -> asyncio.Lock:
        """Held from `copy_on_replace` to the end of a replacement or deletion: of two saves under one name,
        the second must see the weights of the first."""
        return self._replacements.setdefault(path, asyncio.Lock())

    async def copy_on_replace(self, checkpoint: Checkpoint) -> None:
        """Called before a checkpoint is replaced or deleted: acquired weights are read into memory first."""
        ref = self._refs.get(policy_key(checkpoint))
        if ref is None or not ref.references:
            return
        async with ref.lock:
            await self._load(ref)
            ref.folder = ref.checkpoint = None

    @contextlib.asynccontextmanager
    async def use(self, key: str) -> AsyncIterator[str]:
        """The policy id, in memory until the context ends. EngineUserError: the policy was released."""
        ref = self._refs.pop(key, None)
        if ref is None:
            raise EngineUserError(f"the weights of {key} no longer exist: their session has ended")
        self._refs[key] = ref  # the most recently used one is the last
        ref.running += 1
        try:
            async with ref.lock:
                policy_id = await self._load(ref)
            yield policy_id
        finally:
            ref.running -= 1
            self._drop_unused(key)

    async def trim(self) -> None:
        """Offloads policies to disk until at most MAX_IN_MEMORY are in memory."""
        loaded = [(key, ref) for key, ref in self._refs.items() if ref.policy_id is not None]
        for key, ref in loaded[: max(0, len(loaded) - MAX_IN_MEMORY)]:
            async with ref.lock:
                if not ref.running and ref.policy_id is not None:
                    await self._offload(ref, ref.policy_id)
            self._drop_unused(key)
        self._drop_oldest_copies()

    def _drop_oldest_copies(self) -> None:
        copies = [
            ref
            for ref in self._refs.values()
            if ref.folder is not None
            and ref.checkpoint is None
            and ref.policy_id is None
            and not ref.running
            and not ref.aliases
        ]
        for ref in copies[: max(0, len(copies) - MAX_ON_DISK)]:
            assert ref.folder is not None
            shutil.rmtree(ref.folder, ignore_errors=True)
            ref.folder = None

    async def _offload(self, ref: _PolicyRef, policy_id: str) -> None:
        if ref.folder is None:
            self._offload_dir.mkdir(parents=True, exist_ok=True)
            folder = self._offload_dir / os.urandom(8).hex()
            await asyncio.wrap_future(self._engine.export(policy_id, folder))
            ref.folder = folder
        self._engine.drop_policy(policy_id)
        ref.policy_id = None

    async def _load(self, ref: _PolicyRef) -> str:
        policy_id = ref.policy_id
        if policy_id is None:
            if ref.folder is None:
                raise EngineUserError(
                    f"these weights are gone: {MAX_ON_DISK} newer ones without a checkpoint were sampled",
                    "save weights that are needed later with a name, and open a new sampler",
                )
            policy_id = await asyncio.wrap_future(self._engine.load_policy(ref.folder))
            if ref.checkpoint is not None and not self._store.is_current(ref.checkpoint):
                self._engine.drop_policy(policy_id)
                raise EngineUserError(
                    f"{ref.checkpoint.path} was replaced or deleted while it was requested",
                    "request it again",
                )
            ref.policy_id = policy_id
        return policy_id

    def _drop_unused(self, key: str) -> None:
        ref = self._refs.get(key)
        if ref is None or ref.references or ref.running or ref.lock.locked():
            return
        if ref.checkpoint is not None and ref.policy_id is not None:
            return  # the checkpoint may be sampled again: `trim` decides when it leaves memory
        del self._refs[key]
        if ref.policy_id is not None:
            self._engine.drop_policy(ref.policy_id)
        if ref.folder is not None and ref.checkpoint is None:
            shutil.rmtree(ref.folder, ignore_errors=True)


def policy_key(checkpoint: Checkpoint) -> str:
    """The key of its weights; a checkpoint that replaces it has another one."""
    return f"{checkpoint.path}@{checkpoint.created_s}"


def _folder_version(folder: Path) -> str:
    """As the engine that wrote a checkpoint calls it; the path of any other folder."""
    try:
        created_s = json.loads((folder / "checkpoint.json").read_text(encoding="utf-8"))["created_s"]
    except (OSError, ValueError, KeyError):
        return str(folder)
    return f"{CheckpointPath(*folder.absolute().parts[-3:])}@{created_s}"


class PolicyNames:
    """The model names that requests may use, over any protocol.

    These are the names of the base model, `tinker://…` checkpoints, sampler ids, model ids (their newest
    sampler), and aliases, which move to newer weights: `policy`, the name that a run sets with user_metadata
    {"policy": name}, and the one that a save sets (see `aliases`). A server of certain policies lists their
    names alone, and refuses those of the base model: it never answers as one where the other was meant.
    """

    def __init__(self, policies: Policies, base_names: Iterable[str]) -> None:
        self.policies = policies
        self.base_names = tuple(base_names)
        self._keys: dict[str, str] = {}
        self._served: list[str] = []

    def set(self, name: str, key: str) -> None:
        """From now on `name` refers to the weights of `key`."""
        if name in self.base_names:
            raise EngineUserError(f"'{name}' is the base model", "choose another name for the policy")
        self.policies.acquire(key, alias=name != key)
        self.drop(name)
        self._keys[name] = key

    def serve(self, name: str, folder: Path, policy_id: str) -> None:
        """Serves weights that were loaded from the folder; the first ones are `policy` too."""
        if name in (*self._keys, LATEST_POLICY):
            raise EngineUserError(f"the policy '{name}' is named twice, or is a name of the engine's own")
        version = _folder_version(folder)
        self.policies.add_snapshot(version, policy_id)
        self.set(name, version)
        if not self._served:
            self.set(LATEST_POLICY, version)
        self._served.append(name)

    def drop(self, name: str) -> None:
        key = self._keys.pop(name, None)
        if key is not None:
            self.policies.release(key, alias=name != key)

    def names(self) -> list[str]:
        return self._served or [*self.base_names, *self._keys]

    def resolve(self, name: str) -> str | None:
        """The key that `name` refers to now; None: the base model. EngineUserError: no model has the name."""
        if name in self.base_names and not self._served:
            return None
        if name in self._keys:
            return self._keys[name]
        if name.startswith("tinker://"):
            return self.policies.checkpoint_key(CheckpointPath.parse(name))
        raise EngineUserError(
            f"the model '{name}' does not exist", f"there is {', '.join(sorted(self.names()))}"
        )

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[str | None]:
        """The policy id of a name, in memory until the context ends; None: the base model."""
        key = self.resolve(name)
        if key is None:
            yield None
            return
        self.policies.acquire(key)
        try:
            async with self.policies.use(key) as policy_id:
                yield policy_id
        finally:
            self.policies.release(key)


ALIAS_KEY = "alias"
RUN_ALIAS_KEY = "policy"
"""In the metadata of a run: an alias for all weights that it saves for sampling."""
IMPORT_SESSION = "import"
"""The session id of imported runs. LATEST_POLICY never refers to them."""
_MAX_LENGTH = 200
_RESERVED = re.compile(r"tinker://.*|.*:(train|sample):\d+")
"""The forms of checkpoint paths, and of the ids of models and samplers."""


def alias_in(names: PolicyNames, metadata: Mapping[str, str] | None, key: str = ALIAS_KEY) -> str | None:
    """The alias that the metadata sets, if any. EngineUserError: it is not a valid alias."""
    alias = (metadata or {}).get(key)
    if alias is not None:
        check_alias(names, alias)
    return alias


def check_alias(names: PolicyNames, alias: str) -> None:
    """EngineUserError: it is not a valid alias."""
    if alias in names.base_names:
        raise EngineUserError(f"the alias cannot be '{alias}': that is the base model")
    if not 0 < len(alias) <= _MAX_LENGTH or not alias.isprintable() or _RESERVED.fullmatch(alias):
        raise EngineUserError(
            f"'{alias[:_MAX_LENGTH]}' cannot be an alias",
            f"use 1 to {_MAX_LENGTH} printable characters, not in the form of a checkpoint, model or sampler",
        )


def restore_aliases(names: PolicyNames, store: CheckpointStore) -> None:
    """At start-up: every alias refers to the newest checkpoint that was saved for it."""
    for checkpoint in reversed(store.checkpoints()):
        run = store.run(checkpoint.path.run_id)
        if checkpoint.path.kind != SAMPLER_WEIGHTS or run is None or run.base_model not in names.base_names:
            continue
        aliases = {(checkpoint.user_metadata or {}).get(ALIAS_KEY), run.user_metadata.get(RUN_ALIAS_KEY)}
        if run.session_id != IMPORT_SESSION:
            aliases.add(LATEST_POLICY)
        for alias in aliases - {None, *names.base_names}:
            assert alias is not None
            names.set(alias, names.policies.checkpoint_key(checkpoint.path))
