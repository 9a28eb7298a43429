"""DPO and KTO are TRL's: the same losses, and the same gradient of every adapter weight, on the same rows.

The gradient is read over the public API: an Adam step whose epsilon is huge moves each weight by its negated
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from datasets import Dataset
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig as TrlDpoConfig
from trl import DPOTrainer, KTOTrainer
from trl import KTOConfig as TrlKtoConfig

from hermes.training.data.datums import LossSpec, sft_datum
from hermes.training.offline import LOSS, OfflineObjective, rows_of_step
from hermes.training.preference.dpo import DpoObjective
from hermes.training.preference.examples import RenderedCompletion
from hermes.training.preference.kto import KtoObjective
from hermes.training.preference.losses import DpoConfig, DpoLoss, KtoConfig
from hermes.training.preference.reference import BASE
from hermes.training.service.client import AdapterClient
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import TrainingRunSpec
from hermes.training.start_weights import checkpoint_folder
from tests.engine.http.engine_process import Server, tokens
from tests.training.conftest import MakeRun
from tests.training.preference.rows import LONGEST, pair_rows, unpaired_rows

ROWS = 5
_LINEAR = 1e8
"""With this epsilon and learning rate an Adam step is the negated gradient."""
TOLERANCE = 1e-4


@dataclass(frozen=True)
class World:
    """Two adapters, one of them the reference, at an engine and as PEFT files."""

    run: TrainingRunSpec
    reference: str
    policy: str
    engine: Server
    model: Path

    def folder(self, path: str) -> Path:
        return checkpoint_folder(self.engine.state_dir, path)


@pytest.fixture
def world(engine: Server, tiny: Path, make_run: MakeRun) -> World:
    """The policy has left the reference, which has left the base model."""
    run = make_run()
    with (
        closing(TokenMeter(run.folder)) as meter,
        AdapterClient(run.connection, run.lora, meter) as client,
    ):
        saved = []
        for name in ("reference", "policy"):
            for number in range(4):
                data = [sft_datum(tokens(12, seed=number), [1.0] * 12)]
                client.forward_backward(data, LossSpec("cross_entropy", {}))
                client.optim_step(0.02, 0.9, 0.95, 1.0)
            saved.append(client.save(name))
    return World(run, saved[0], saved[1], engine, tiny)


@dataclass(frozen=True)
class Measured:
    loss: float
    gradients: dict[str, torch.Tensor]


def ours(world: World, objective: OfflineObjective) -> Measured:
    lora = replace(world.run.lora, start=world.policy)
    with (
        closing(TokenMeter(world.run.folder)) as meter,
        AdapterClient(world.run.connection, lora, meter) as client,
        closing(objective),
    ):
        objective.prepare(world.run, client)
        metrics = objective.accumulate(client, 1, 0, ROWS)
        before = load_file(world.folder(world.policy) / "adapter_model.safetensors")
        linear = tinker.AdamParams(
            learning_rate=_LINEAR, beta1=0.0, beta2=0.0, eps=_LINEAR, weight_decay=0.0, grad_clip_norm=0.0
        )
        client._training.optim_step(linear).result()
        after = load_file(world.folder(client.save("after")) / "adapter_model.safetensors")
    return Measured(metrics[LOSS], {name: before[name] - after[name] for name in before})


def peft_model(world: World, reference: str) -> Any:
    maker: Any = AutoModelForCausalLM
    base = maker.from_pretrained(world.model, dtype=torch.float32)
    return PeftModel.from_pretrained(base, world.folder(reference), is_trainable=True)


def trl_measured(world: World, trainer: Any, rows: list[dict[str, Any]]) -> Measured:
    """The trainer holds the reference as its own copy; the policy's weights come after that."""
    model = trainer.model
    set_peft_model_state_dict(model, load_file(world.folder(world.policy) / "adapter_model.safetensors"))
    batch = trainer.data_collator(rows)
    model.train()
    loss = trainer._compute_loss(model, batch, False)
    loss.backward()
    gradients = {
        name.replace(".default", ""): parameter.grad
        for name, parameter in model.named_parameters()
        if "lora_" in name and ".default" in name and parameter.grad is not None
    }
    return Measured(float(loss.detach()), gradients)


def check_equal(mine: Measured, theirs: Measured) -> None:
    assert mine.loss == pytest.approx(theirs.loss, abs=TOLERANCE, rel=TOLERANCE)
    assert mine.gradients.keys() == theirs.gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in theirs.gradients.values())
    assert largest > 1e-3, "a comparison of nothing"
    for name, gradient in theirs.gradients.items():
        assert torch.allclose(mine.gradients[name], gradient, atol=TOLERANCE, rtol=TOLERANCE), name
    together = [
        torch.cat([side.gradients[name].flatten() for name in theirs.gradients]) for side in (mine, theirs)
    ]
    assert float((together[0] - together[1]).norm() / together[1].norm()) < TOLERANCE


def split(side: RenderedCompletion) -> tuple[list[int], list[int]]:
    context, cut = side.contexts[0], side.prompt_tokens
    return list(context.tokens[:cut]), list(context.tokens[cut:])


def arguments(tmp_path: Path) -> dict[str, Any]:
    return {
        "output_dir": str(tmp_path / "trl"),
        "per_device_train_batch_size": ROWS,
        "report_to": "none",
        "use_cpu": True,
        "max_length": None,
        "bf16": False,
        "gradient_checkpointing": False,
    }


@pytest.fixture
def tokenizer(tiny: Path) -> Iterator[Any]:
    maker: Any = AutoTokenizer
    made = maker.from_pretrained(tiny)
    made.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    yield made


DPO = {
    "sigmoid": (DpoConfig(beta=0.3), {"loss_type": ["sigmoid"], "beta": 0.3}),
    "robust": (
        DpoConfig(DpoLoss.ROBUST, beta=0.3, label_smoothing=0.1),
        {"loss_type": ["robust"], "beta": 0.3, "label_smoothing": 0.1},
    ),
    "ipo": (DpoConfig(DpoLoss.IPO, beta=0.5), {"loss_type": ["ipo"], "beta": 0.5}),
    "length-normalised": (
        DpoConfig(DpoLoss.SIGMOID_NORM, beta=2.0),
        {"loss_type": ["sigmoid_norm"], "beta": 2.0},
    ),
    "with an SFT term": (
        DpoConfig(beta=0.3, sft_weight=0.5),
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5], "beta": 0.3},
    ),
}


@pytest.mark.parametrize("name", DPO)
def test_dpo_has_the_loss_and_the_gradients_of_trl(
    world: World, tokenizer: Any, tmp_path: Path, name: str
) -> None:
    config, settings = DPO[name]
    rows = pair_rows(ROWS)
    mine = ours(world, DpoObjective(rows, config, world.reference))
    dataset = []
    for pair in rows.train:
        prompt, chosen = split(pair.chosen)
        dataset.append({"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": split(pair.rejected)[1]})
    trainer = DPOTrainer(
        model=peft_model(world, world.reference),
        args=TrlDpoConfig(**arguments(tmp_path), **settings),
        train_dataset=Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}] * ROWS),
        processing_class=tokenizer,
    )
    check_equal(mine, trl_measured(world, trainer, dataset))


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.7, 1.3)])
def test_kto_has_the_loss_and_the_gradients_of_trl(
    world: World, tokenizer: Any, tmp_path: Path, weights: tuple[float, float]
) -> None:
    rows = unpaired_rows(ROWS)
    mine = ours(world, KtoObjective(rows, KtoConfig(0.3, *weights), world.reference, LONGEST))
    # The order of our first step is the order of TRL's batch, whose neighbours give the divergence.
    dataset = []
    for row in rows_of_step(rows.train, 1, ROWS, 0):
        prompt, answer = split(row.completion)
        dataset.append({"prompt_ids": prompt, "completion_ids": answer, "label": row.desirable})
    for position, row in enumerate(dataset):
        row["KL_completion_ids"] = dataset[position - 1]["completion_ids"]
    trainer = KTOTrainer(
        model=peft_model(world, world.reference),
        args=TrlKtoConfig(
            **arguments(tmp_path), beta=0.3, desirable_weight=weights[0], undesirable_weight=weights[1]
        ),
        train_dataset=Dataset.from_list([{"prompt": "a", "completion": "b", "label": True}] * ROWS),
        processing_class=tokenizer,
    )
    check_equal(mine, trl_measured(world, trainer, dataset))


def test_the_reference_can_be_the_base_model(world: World, make_run: Callable[..., TrainingRunSpec]) -> None:
    """An adapter that has not been trained is the base model: its log-ratios are 0 and the loss is log 2."""
    rows = pair_rows(ROWS)
    objective = DpoObjective(rows, DpoConfig(), BASE)
    with (
        closing(TokenMeter(world.run.folder)) as meter,
        AdapterClient(world.run.connection, world.run.lora, meter) as client,
    ):
        objective.prepare(world.run, client)
        metrics = objective.accumulate(client, 1, 0, ROWS)
    assert metrics[LOSS] == pytest.approx(0.6931472, abs=1e-6)
    assert metrics["rewards/margin"] == pytest.approx(0.0, abs=1e-6)
