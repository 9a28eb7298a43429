"""Aliases: saving weights for sampling with user_metadata {"alias": NAME} makes NAME refer to those weights.

The change is immediate and holds for every protocol; requests in progress finish on the weights they started
with. After a restart each alias refers to the newest of its checkpoints on disk. Weights without a checkpoint
end with the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hermes.engine.checkpoints.store import SAMPLER_WEIGHTS, CheckpointStore
from hermes.engine.server.policies import LATEST_POLICY, PolicyNames
from hermes.engine.types import EngineUserError

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
