"""Fine-tune one model on a `hermes export --format trl-sft` file with Unsloth and save the adapter.

The loss covers the assistant's turns only; the script prints the text that is left to learn and stops when
there is none. It needs a GPU for anything but a tiny model.
"""

from __future__ import annotations

import argparse


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="JSONL file with the columns messages and tools")
    parser.add_argument("--model", default="unsloth/Qwen3-4B")
    parser.add_argument("--output", default="out/unsloth")
    parser.add_argument("--max-tokens", type=int, default=8192)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--max-steps", type=int, default=-1, help="Stop after so many steps")
    parser.add_argument("--full-precision", action="store_true", help="16-bit LoRA, no 4-bit weights")
    parser.add_argument("--user-mark", default="<|im_start|>user\n")
    parser.add_argument("--assistant-mark", default="<|im_start|>assistant\n")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    # Unsloth patches trl, transformers and peft, so it is imported before them.
    from unsloth import FastLanguageModel, is_bfloat16_supported  # isort: skip
    from unsloth.chat_templates import train_on_responses_only  # isort: skip
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=options.model,
        max_seq_length=options.max_tokens,
        load_in_4bit=not options.full_precision,
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=options.rank,
        lora_alpha=options.rank,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        use_gradient_checkpointing="unsloth",
        random_state=42,
        max_seq_length=options.max_tokens,
    )

    def render(row: dict[str, object]) -> dict[str, str]:
        text = tokenizer.apply_chat_template(row["messages"], tools=row.get("tools") or None, tokenize=False)
        return {"text": text}

    rows = load_dataset("json", data_files=options.data, split="train")
    rows = rows.map(render, remove_columns=rows.column_names)
    trainer = SFTTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=rows,
        args=SFTConfig(
            output_dir=options.output,
            dataset_text_field="text",
            max_length=options.max_tokens,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=8,
            learning_rate=2e-4,
            num_train_epochs=options.epochs,
            max_steps=options.max_steps,
            bf16=is_bfloat16_supported(),
            logging_steps=1,
            seed=42,
            report_to="none",
        ),
    )
    trainer = train_on_responses_only(
        trainer, instruction_part=options.user_mark, response_part=options.assistant_mark
    )
    first = trainer.train_dataset[0]
    learned = [
        token for token, label in zip(first["input_ids"], first["labels"], strict=True) if label != -100
    ]
    if not learned:
        raise SystemExit("Nothing is left to learn: the marks do not occur in the rendered text.")
    print("Learned text of the first row:", tokenizer.decode(learned)[:2000])
    trainer.train()
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    print(f"The adapter is in {options.output}.")


if __name__ == "__main__":
    main()
