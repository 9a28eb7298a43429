"""gspo from the batch to the gradient, against the paper's formula in plain PyTorch on a PEFT model; and the
adapter's alpha and targets, which are those that were asked for."""

from __future__ import annotations

import json
import statistics
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from hermes.errors import UsageError
from hermes.training.data.batch import BatchConfig, prepare
from hermes.training.service.client import AdapterClient, LoraSpec, connection
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import TrainingRunSpec
from hermes.training.start_weights import checkpoint_folder
from hermes.training.update import Update
from tests.engine.http.engine_process import Server
from tests.training.conftest import MakeRun
from tests.training.proxy import proxy
from tests.training.rl_runs import settings
from tests.training.world import PROMPT, group

ANSWERS = ((8, 9, 10, 11, 12, 13), (20, 21, 22), (30, 31, 32, 33, 34), (40, 41))
SCORES = (1.0, 1.0, 0.0, 0.0)
RATE = 0.03


def answer_logprobs(model: Any) -> list[Tensor]:
    rows = []
    for answer in ANSWERS:
        ids = torch.tensor([[*PROMPT, *answer]])
        logprobs = model(ids).logits[0, :-1].log_softmax(-1)
        rows.append(logprobs[range(ids.shape[1] - 1), ids[0, 1:]][len(PROMPT) - 1 :])
    return rows


def peft_model(engine: Server, tiny: Path, sampler: str) -> Any:
    base = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    return PeftModel.from_pretrained(
        base, str(checkpoint_folder(engine.state_dir, sampler)), is_trainable=True
    )


def trained(run: TrainingRunSpec, epochs: int, **more: Any) -> tuple[str, dict[str, float]]:
    """The weights after some updates from one batch, and the metrics of the last of them."""
    with closing(TokenMeter(run.folder)) as meter, AdapterClient(run.connection, run.lora, meter) as client:
        present = client.forward([[*PROMPT, *answer] for answer in ANSWERS])
        stated = [row[len(PROMPT) :] for row in present]
        batch = prepare(
            [group(ANSWERS, stated, SCORES, overrides=[{"policy_version": "step-0"}] * 4)], BatchConfig(), 0
        )
        update = Update(client, settings("", loss="gspo", epochs=epochs, **more))
        metrics = update.apply(batch.sequences, 1, RATE, None)
        return client.publish("step-1"), metrics


def test_gspo_is_the_papers_formula_in_plain_pytorch(engine: Server, tiny: Path, make_run: MakeRun) -> None:
    sampler, first = trained(make_run(), epochs=1)
    assert first["health/clip_fraction"] == 0, "the ratio is 1 before the first update"
    model = peft_model(engine, tiny, sampler)
    with torch.no_grad(), model.disable_adapter():
        before = answer_logprobs(model)
    ratios = [(new - old).mean().exp() for new, old in zip(answer_logprobs(model), before, strict=True)]
    # Bounds that clip one of the better answers and one of the worse ones.
    high, low = (statistics.fmean(ratio.item() for ratio in pair) for pair in (ratios[:2], ratios[2:]))
    assert low < 1 < high and len({ratio.item() for ratio in ratios}) == 4
    losses = [
        -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
        for ratio, advantage in zip(ratios, (0.5, 0.5, -0.5, -0.5), strict=True)
    ]
    torch.stack(losses).mean().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    _, second = trained(make_run("again"), epochs=2, clip=(low, high))
    assert second["optim/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert second["health/clip_fraction"] == 0.25, "half of the answers, in one of two updates"


def test_stale_rollouts_are_weighed_by_the_ratio_of_the_sequence(make_run: MakeRun) -> None:
    """One of two sequences states logprobs that are lower by 0.4 on average: it counts exp(0.4) times."""
    run = make_run()
    with closing(TokenMeter(run.folder)) as meter, AdapterClient(run.connection, run.lora, meter) as client:
        present = client.forward([[*PROMPT, *answer] for answer in ANSWERS[:2]])
        stated = [row[len(PROMPT) :] for row in present]
        stated[0] = [value - (0.8 if index % 2 else 0.0) for index, value in enumerate(stated[0])]
        batch = prepare(
            [group(ANSWERS[:2], stated, (1.0, 0.0), overrides=[{"policy_version": "step-0"}] * 2)],
            BatchConfig(),
            1,
        )
        update = Update(client, settings("", loss="gspo"))
        metrics = update.apply(batch.sequences, 2, 0.0, None)
    weight = 2.718281828**0.4
    assert metrics["train/loss"] == pytest.approx(-(0.5 * weight - 0.5) / 2, rel=1e-3)


def lora_config(engine: Server, run: TrainingRunSpec) -> dict[str, Any]:
    with closing(TokenMeter(run.folder)) as meter, AdapterClient(run.connection, run.lora, meter) as client:
        folder = checkpoint_folder(engine.state_dir, client.publish("shape"))
        config: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
        return config


def test_an_adapter_has_the_alpha_and_the_targets_that_were_asked_for(
    engine: Server, make_run: MakeRun
) -> None:
    run = make_run()
    plain = lora_config(engine, run)
    assert plain["lora_alpha"] == 32 and {"q_proj", "down_proj"} <= set(plain["target_modules"])
    changed = lora_config(engine, replace(run, lora=replace(run.lora, alpha=12.0, targets=("attn",))))
    assert changed["lora_alpha"] == 12
    assert set(changed["target_modules"]) == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_a_service_that_knows_no_alpha_is_not_trusted_with_one(engine: Server, tmp_path: Path) -> None:
    """The engine behind a proxy that has no /v1/models, as other services have none."""
    with proxy(engine.url, only="/api") as url, closing(TokenMeter(tmp_path)) as meter:
        spec = LoraSpec("tiny", alpha=16.0)
        with pytest.raises(UsageError, match="no Hermes engine"):
            AdapterClient(connection(url, {"TINKER_API_KEY": "tml-x"}), spec, meter)
