"""What the endpoints share: the engine, what is on disk, and who is talking to us."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.engine.checkpoints.store import CheckpointStore
from hermes.engine.server.aliases import restore
from hermes.engine.server.policies import Policies, PolicyNames
from hermes.engine.server.tinker.external import Signer
from hermes.engine.server.tinker.futures import FutureStore
from hermes.engine.server.tinker.sessions import Sessions
from hermes.engine.types import EngineUserError

if TYPE_CHECKING:
    from hermes.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class EngineServerState:
    engine: Engine
    store: CheckpointStore
    calls: FutureStore
    policies: Policies
    names: PolicyNames
    sessions: Sessions
    signer: Signer
    scratch: Path
    """For files that need not outlive the process; empty at its start."""
    tokenizer_id: str
    """Where a client on this machine can load the tokenizer from."""

    def check_base(self, base_model: str) -> None:
        if base_model not in self.names.base_names:
            known = ", ".join(f"'{name}'" for name in self.names.base_names)
            raise EngineUserError(f"this engine does not serve '{base_model}'", f"it serves {known}")


def open_state(
    engine: Engine, store: CheckpointStore, base_names: tuple[str, ...], client_timeout_s: float
) -> EngineServerState:
    """Belongs to the event loop that calls it."""
    calls = FutureStore()
    scratch = store.root / ".ephemeral"
    policies = Policies(engine, store, scratch)
    names = PolicyNames(policies, base_names)
    restore(names, store)
    sessions = Sessions(engine, calls, names, client_timeout_s)
    return EngineServerState(
        engine, store, calls, policies, names, sessions, Signer(), scratch, engine.tokenizer_dir
    )
