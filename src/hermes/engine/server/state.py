"""The state that the endpoints share: the engine, checkpoints, policies, sessions and pending futures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.engine.checkpoints.store import CheckpointStore
from hermes.engine.server.policies import Policies, PolicyNames, restore_aliases
from hermes.engine.server.security import Signer
from hermes.engine.server.tinker.futures import FutureStore
from hermes.engine.server.tinker.sessions import Sessions
from hermes.engine.types import EngineUserError

if TYPE_CHECKING:
    from hermes.engine.info import EngineInterface


@dataclass(frozen=True, slots=True)
class EngineServerState:
    engine: EngineInterface
    store: CheckpointStore
    futures: FutureStore
    policies: Policies
    names: PolicyNames
    sessions: Sessions
    signer: Signer
    scratch_dir: Path
    """For files that end with the process; emptied when it starts."""
    tokenizer_id: str
    """Where a client on this machine can load the tokenizer from."""

    def check_base(self, base_model: str) -> None:
        """EngineUserError: it is another model than the one that is served."""
        if base_model not in self.names.base_names:
            served = ", ".join(f"'{name}'" for name in self.names.base_names)
            raise EngineUserError(f"this engine does not serve '{base_model}'", f"it serves {served}")


def open_state(
    engine: EngineInterface, store: CheckpointStore, base_names: tuple[str, ...], client_timeout_s: float
) -> EngineServerState:
    """Belongs to the event loop that calls it."""
    futures = FutureStore()
    scratch_dir = store.root / ".ephemeral"
    policies = Policies(engine, store, scratch_dir)
    names = PolicyNames(policies, base_names)
    restore_aliases(names, store)
    sessions = Sessions(engine, futures, names, client_timeout_s)
    return EngineServerState(
        engine, store, futures, policies, names, sessions, Signer(), scratch_dir, engine.tokenizer_dir
    )
