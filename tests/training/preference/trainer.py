"""`python -m tests.training.preference.trainer KIND FOLDER URL MODEL STEPS`: a trainer that can be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from hermes.training.checkpoints import RetentionPolicy
from hermes.training.monitor.sinks import JsonLines, Sinks
from hermes.training.offline import OfflineObjective, OfflineSettings, train_offline
from hermes.training.preference.dpo import DpoObjective
from hermes.training.preference.kto import KtoObjective
from hermes.training.preference.losses import DpoConfig, KtoConfig
from hermes.training.preference.readout import ReadOut, ReadOutTokens
from hermes.training.preference.reference import BASE
from hermes.training.preference.reward import RewardConfig, RewardObjective
from hermes.training.schedule import Schedule
from hermes.training.service.client import LoraSpec, connection
from hermes.training.session import TrainingRunSpec
from tests.engine.http.engine_process import KEY
from tests.training.preference.rows import LONGEST, pair_rows, reward_rows, unpaired_rows


def objective(kind: str) -> OfflineObjective:
    if kind == "dpo":
        return DpoObjective(pair_rows(14, held_out=8), DpoConfig(), BASE)
    if kind == "kto":
        return KtoObjective(unpaired_rows(14, held_out=6), KtoConfig(), BASE, LONGEST)
    return RewardObjective(reward_rows(14, held_out=8), RewardConfig(), ReadOut(), ReadOutTokens(300, 301))


def main() -> None:
    kind, folder, url, model, steps = sys.argv[1:]
    run = TrainingRunSpec(
        kind,
        Path(folder),
        connection(url, {"TINKER_API_KEY": KEY}),
        LoraSpec(model, rank=8, seed=3),
        RetentionPolicy(4, 3),
    )
    settings = OfflineSettings(Schedule(0.005), epochs=99, batch_size=5, max_steps=int(steps), eval_every=3)
    sinks = Sinks([JsonLines(run.folder)])
    result = train_offline(run, objective(kind), settings, sinks, lambda line: print(line, flush=True))
    print(result.reason, flush=True)


if __name__ == "__main__":
    main()
