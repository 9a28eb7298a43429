"""Train a LoRA adapter with TRL on rows of `hermes export`: SFT, DPO, KTO or a reward model.

`sft` takes --format trl-sft, `dpo` and `reward` take trl-preference, `kto` takes trl-unpaired. Before SFT the
script prints what the loss covers in the first row, and stops when that is nothing. It also runs on a CPU.
"""

from __future__ import annotations

import argparse

RATES = {"sft": 1e-4, "dpo": 5e-6, "kto": 5e-6, "reward": 1e-4}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method", choices=sorted(RATES))
    parser.add_argument("data", help="JSONL or Parquet file")
    parser.add_argument("--model", required=True, help="Name or folder")
    parser.add_argument("--output", required=True)
    parser.add_argument("--max-length", type=int, default=8192)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--beta", type=float, default=0.1, help="dpo and kto")
    return parser.parse_args()


def show_learned_text(trainer: object) -> None:
    batch = next(iter(trainer.get_train_dataloader()))
    learned = batch["input_ids"][0][batch["labels"][0] != -100]
    if not len(learned):
        raise SystemExit("The loss covers no token of the first row: the template has no generation marks.")
    print("The loss covers:", trainer.processing_class.decode(learned)[:2000])


def main() -> None:
    options = arguments()
    import torch
    from datasets import load_dataset
    from peft import LoraConfig
    from trl import (
        DPOConfig,
        DPOTrainer,
        KTOConfig,
        KTOTrainer,
        RewardConfig,
        RewardTrainer,
        SFTConfig,
        SFTTrainer,
    )

    on_cpu = not torch.cuda.is_available()
    kind = "parquet" if options.data.endswith(".parquet") else "json"
    rows = load_dataset(kind, data_files=options.data, split="train")
    common = {
        "output_dir": options.output,
        "max_length": options.max_length,
        "per_device_train_batch_size": options.batch,
        "gradient_accumulation_steps": options.accumulate,
        "learning_rate": options.learning_rate or RATES[options.method],
        "num_train_epochs": options.epochs,
        "max_steps": options.max_steps,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "seed": 42,
        # TRL's configs choose bf16 by default, which transformers refuses without a GPU.
        "use_cpu": on_cpu,
        "bf16": not on_cpu,
    }
    task = "SEQ_CLS" if options.method == "reward" else "CAUSAL_LM"
    lora = LoraConfig(
        r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear", task_type=task
    )
    if options.method == "sft":
        args = SFTConfig(assistant_only_loss=True, **common)
        trainer = SFTTrainer(model=options.model, args=args, train_dataset=rows, peft_config=lora)
        show_learned_text(trainer)
    elif options.method == "dpo":
        args = DPOConfig(beta=options.beta, **common)
        trainer = DPOTrainer(model=options.model, args=args, train_dataset=rows, peft_config=lora)
    elif options.method == "kto":
        args = KTOConfig(beta=options.beta, **common)
        trainer = KTOTrainer(model=options.model, args=args, train_dataset=rows, peft_config=lora)
    else:
        args = RewardConfig(**common)
        trainer = RewardTrainer(model=options.model, args=args, train_dataset=rows, peft_config=lora)
    trainer.train()
    trainer.save_model(options.output)
    print(f"The adapter is in {options.output}.")


if __name__ == "__main__":
    main()
