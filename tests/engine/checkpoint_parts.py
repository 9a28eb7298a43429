"""A store of checkpoints with one run, and checkpoints of a single small file."""

from __future__ import annotations

from pathlib import Path

from hermes.engine.checkpoints.store import Checkpoint, CheckpointPath, CheckpointStore, TrainingRun
from hermes.engine.types import LoraConfig

RUN = TrainingRun("s:train:0", "s", "tiny", LoraConfig(rank=4, seed=3), 1000.0, {"owner": "me"})
PATH = CheckpointPath(RUN.id, "weights", "step-1")


def opened(root: Path) -> CheckpointStore:
    store = CheckpointStore(root)
    store.add_run(RUN)
    return store


def write(store: CheckpointStore, path: CheckpointPath, text: str = "weights", **more: object) -> Checkpoint:
    overwrite = bool(more.pop("overwrite", False))
    draft = store.draft(path, overwrite=overwrite)
    draft.mkdir()
    (draft / "adapter_model.safetensors").write_text(text)
    return store.commit(path, draft, overwrite=overwrite, **more)  # type: ignore[arg-type]
