"""Fine-tune on a Modal GPU: data and adapter live in a volume, the key in a secret.

modal run train.py --data data/train.jsonl        uploads the rows, trains, leaves the adapter in the volume
modal volume get hermes-training adapter out      downloads it
"""

from __future__ import annotations

from pathlib import Path

import modal

VOLUME = modal.Volume.from_name("hermes-training", create_if_missing=True)
IMAGE = modal.Image.debian_slim(python_version="3.11").uv_pip_install(
    "trl==1.16.0", "peft==0.21.2", "transformers==5.22.2", "datasets==5.2.0", "torch==2.13.0"
)
app = modal.App("hermes-training", image=IMAGE)


@app.function(gpu="A100-80GB", volumes={"/vol": VOLUME}, timeout=6 * 60 * 60)
def train(model: str, steps: int) -> str:
    from datasets import load_dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    VOLUME.reload()
    trainer = SFTTrainer(
        model=model,
        train_dataset=load_dataset("json", data_files="/vol/train.jsonl", split="train"),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        args=SFTConfig(
            output_dir="/vol/adapter",
            max_length=8192,
            assistant_only_loss=True,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=8,
            learning_rate=1e-4,
            max_steps=steps,
            save_steps=50,
            report_to="none",
        ),
    )
    trainer.train()
    trainer.save_model("/vol/adapter")
    VOLUME.commit()
    return "/vol/adapter"


@app.local_entrypoint()
def main(data: str, model: str = "Qwen/Qwen3-4B", steps: int = 200) -> None:
    if not Path(data).is_file():
        raise SystemExit(f"there is no file {data}")
    with VOLUME.batch_upload(force=True) as batch:
        batch.put_file(data, "/train.jsonl")
    print(train.remote(model, steps))
