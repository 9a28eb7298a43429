"""Policies by key: frozen weights that can be sampled, few in memory, the rest on disk.

A key is the id of an ephemeral sampler, or the path and the time of a named checkpoint. A snapshot enters as
it is, a pointer and no copy; the SDK never says when it is done with one, so beyond a number of them the
least recently used one that nobody is sampling is written to a folder and leaves memory, to come back when it
is asked for. Whatever happens to it, a key means the same weights for as long as it is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.engine.checkpoints.store import Checkpoint, CheckpointPath, CheckpointStore
from hermes.engine.types import EngineUserError

if TYPE_CHECKING:
    from hermes.engine.engine import Engine

LIVE = 8
"""How many stay in memory."""
MOVING = "policy"
"""The alias of the newest weights that any run has handed to the sampler."""


@dataclass(slots=True, eq=False)
class _PolicyRef:
    policy_id: str | None
    """None: not in memory."""
    folder: Path | None
    """Where it can be read from; None: nowhere yet."""
    named: bool
    """The folder is a checkpoint's, and not ours to delete."""
    holders: int = 0
    busy: int = 0
    """Samples under way."""
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)


class Policies:
    """Belongs to the event loop."""

    def __init__(self, engine: Engine, store: CheckpointStore, spill: Path) -> None:
        self._engine = engine
        self._store = store
        self._spill = spill
        self._held: dict[str, _PolicyRef] = {}
        """In the order of their last use."""
        shutil.rmtree(spill, ignore_errors=True)

    def adopt(self, key: str, policy_id: str) -> None:
        """Takes over a snapshot that lies in memory only."""
        self._held[key] = _PolicyRef(policy_id, None, named=False)

    def adopt_named(self, checkpoint: Checkpoint, policy_id: str) -> None:
        """Takes over the snapshot that the checkpoint was written from."""
        self._held[key_of(checkpoint)] = _PolicyRef(
            policy_id, self._store.folder(checkpoint.path), named=True
        )

    def named(self, path: CheckpointPath) -> str:
        """The key of a checkpoint as it is now. EngineUserError: there is none."""
        checkpoint = self._store.find(path)
        key = key_of(checkpoint)
        if key not in self._held:
            self._held[key] = _PolicyRef(None, self._store.folder(path), named=True)
        return key

    def hold(self, key: str) -> None:
        """Keeps it until `release`."""
        self._held[key].holders += 1

    def release(self, key: str) -> None:
        self._held[key].holders -= 1
        self._forget_unused(key)

    async def detach(self, checkpoint: Checkpoint) -> None:
        """Before the checkpoint is replaced or deleted: who holds it keeps its weights all the same."""
        held = self._held.get(key_of(checkpoint))
        if held is None or not held.holders:
            return
        async with held.moving:
            await self._load(held)
            held.folder, held.named = None, False

    @contextlib.asynccontextmanager
    async def use(self, key: str) -> AsyncIterator[str]:
        """Its policy id, in memory for the duration. EngineUserError: nobody holds it any more."""
        held = self._held.pop(key, None)
        if held is None:
            raise EngineUserError(f"the weights of {key} are gone: their session is over")
        self._held[key] = held  # now the most recently used
        held.busy += 1
        try:
            async with held.moving:
                policy_id = await self._load(held)
            yield policy_id
        finally:
            held.busy -= 1
            self._forget_unused(key)

    async def trim(self) -> None:
        """Moves policies out of memory until few enough are in it."""
        live = [(key, held) for key, held in self._held.items() if held.policy_id is not None]
        for key, held in live[: max(0, len(live) - LIVE)]:
            async with held.moving:
                if not held.busy and held.policy_id is not None:
                    await self._move_out(held, held.policy_id)
            self._forget_unused(key)

    async def _move_out(self, held: _PolicyRef, policy_id: str) -> None:
        if held.folder is None:
            self._spill.mkdir(parents=True, exist_ok=True)
            folder = self._spill / os.urandom(8).hex()
            await asyncio.wrap_future(self._engine.export(policy_id, folder))
            held.folder = folder
        self._engine.drop_policy(policy_id)
        held.policy_id = None

    async def _load(self, held: _PolicyRef) -> str:
        policy_id = held.policy_id
        if policy_id is None:
            assert held.folder is not None
            policy_id = await asyncio.wrap_future(self._engine.load_policy(held.folder))
            held.policy_id = policy_id
        return policy_id

    def _forget_unused(self, key: str) -> None:
        held = self._held.get(key)
        if held is None or held.holders or held.busy or held.moving.locked():
            return
        if held.named and held.policy_id is not None:
            return  # somebody may ask for the checkpoint again; `trim` decides
        del self._held[key]
        if held.policy_id is not None:
            self._engine.drop_policy(held.policy_id)
        if held.folder is not None and not held.named:
            shutil.rmtree(held.folder, ignore_errors=True)


def key_of(checkpoint: Checkpoint) -> str:
    """Of its weights; another one once the checkpoint is replaced."""
    return f"{checkpoint.path}@{checkpoint.created_s}"


class PolicyNames:
    """The names under which weights can be asked for, over any protocol.

    The base model's own names; `tinker://…` checkpoints; sampler ids; model ids (their newest sampler); and
    aliases, which move: `policy`, what a run calls itself with user_metadata {"policy": name}, and what a
    save asks for (see `aliases`).
    """

    def __init__(self, policies: Policies, base_names: Iterable[str]) -> None:
        self.policies = policies
        self.base_names = tuple(base_names)
        self._keys: dict[str, str] = {}

    def set(self, name: str, key: str) -> None:
        """From now on `name` means the weights of `key`."""
        if name in self.base_names:
            raise EngineUserError(f"'{name}' is the base model", "choose another name for the policy")
        self.policies.hold(key)
        self.drop(name)
        self._keys[name] = key

    def drop(self, name: str) -> None:
        key = self._keys.pop(name, None)
        if key is not None:
            self.policies.release(key)

    def names(self) -> list[str]:
        return [*self.base_names, *self._keys]

    def resolve(self, name: str) -> str | None:
        """The key of what `name` means now; None: the base model. EngineUserError: nothing has that name."""
        if name in self.base_names:
            return None
        if name in self._keys:
            return self._keys[name]
        if name.startswith("tinker://"):
            return self.policies.named(CheckpointPath.parse(name))
        raise EngineUserError(
            f"nothing here is called '{name}'", f"there is {', '.join(sorted(self.names()))}"
        )

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[str | None]:
        """The policy id behind a name, in memory for the duration; None is the base model."""
        key = self.resolve(name)
        if key is None:
            yield None
            return
        self.policies.hold(key)
        try:
            async with self.policies.use(key) as policy_id:
                yield policy_id
        finally:
            self.policies.release(key)
