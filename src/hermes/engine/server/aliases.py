"""Names that move: a save for the sampler with user_metadata {"alias": NAME} makes NAME mean those weights.

At once, and for every protocol: requests under way finish on what they began with. A restart gives each alias
the newest of its checkpoints that are on disk; weights without a checkpoint do not outlive the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hermes.engine.checkpoints.store import SAMPLER_WEIGHTS, CheckpointStore
from hermes.engine.server.policies import MOVING, PolicyNames
from hermes.engine.types import EngineUserError

KEY = "alias"
RUN_KEY = "policy"
"""In the metadata of a run: its alias for all that it hands over."""
IMPORTED = "import"
"""The session of runs that came from outside: they are not what a run of ours handed over last."""
_LONGEST = 200
_TAKEN = re.compile(r"tinker://.*|.*:(train|sample):\d+")
"""Checkpoints, and the models and samplers of sessions: they mean what they mean."""


def alias_of(names: PolicyNames, metadata: Mapping[str, str] | None, key: str = KEY) -> str | None:
    """The alias that a save (or a run, with RUN_KEY) asks for. EngineUserError: it cannot be one."""
    alias = (metadata or {}).get(key)
    if alias is not None:
        check_alias(names, alias)
    return alias


def check_alias(names: PolicyNames, alias: str) -> None:
    """EngineUserError: it cannot be one."""
    if alias in names.base_names:
        raise EngineUserError(f"the alias cannot be '{alias}': that is the base model")
    if not 0 < len(alias) <= _LONGEST or not alias.isprintable() or _TAKEN.fullmatch(alias):
        raise EngineUserError(
            f"'{alias[:_LONGEST]}' cannot be an alias",
            f"use 1 to {_LONGEST} printable characters, and not the form of a checkpoint, model or sampler",
        )


def restore(names: PolicyNames, store: CheckpointStore) -> None:
    """After a start: every alias means the newest checkpoint that was saved for it."""
    for checkpoint in reversed(store.checkpoints()):
        run = store.run(checkpoint.path.run_id)
        if checkpoint.path.kind != SAMPLER_WEIGHTS or run is None or run.base_model not in names.base_names:
            continue
        saved_for = {(checkpoint.user_metadata or {}).get(KEY), run.user_metadata.get(RUN_KEY)}
        if run.session_id != IMPORTED:
            saved_for.add(MOVING)
        for alias in saved_for - {None, *names.base_names}:
            assert alias is not None
            names.set(alias, names.policies.named(checkpoint.path))
