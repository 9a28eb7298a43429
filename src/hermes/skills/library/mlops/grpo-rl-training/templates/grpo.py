"""GRPO with a reward function of your own.

`--trial` makes two steps with a random model on a CPU, without a network.
"""

from __future__ import annotations

import argparse
import re

NUMBER = re.compile(r"<answer>\s*(-?\d+)\s*</answer>")


def text_of(completion: object) -> str:
    """Conversational prompts give a list of messages, plain prompts give text."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def correct(completions: list[object], answer: list[str], **columns: object) -> list[float]:
    """1 for the right number. Every column of the dataset arrives as a list, beside the completions."""
    matches = [NUMBER.search(text_of(completion)) for completion in completions]
    return [
        1.0 if match and match[1] == wanted else 0.0 for match, wanted in zip(matches, answer, strict=True)
    ]


def well_formed(completions: list[object], **columns: object) -> list[float]:
    """A small reward for the form, so that early groups are not all zero."""
    return [0.1 if len(NUMBER.findall(text_of(completion))) == 1 else 0.0 for completion in completions]


def rows() -> list[dict[str, object]]:
    system = "Think, then write the result as <answer>number</answer>."
    return [
        {
            "prompt": [
                {"role": "system", "content": system},
                {"role": "user", "content": f"What is {a} + {b}?"},
            ],
            "answer": str(a + b),
        }
        for a in range(2, 22)
        for b in range(2, 22)
    ]


def trial_model(folder: str) -> str:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<|end|>", pad_token="<|pad|>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="Qwen/Qwen3-1.7B")
    parser.add_argument("--output", default="out/grpo")
    parser.add_argument("--trial", action="store_true")
    options = parser.parse_args()
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    trial = {"use_cpu": True, "bf16": False, "max_steps": 2} if options.trial else {}
    trainer = GRPOTrainer(
        model=trial_model(options.output + "-model") if options.trial else options.model,
        reward_funcs=[correct, well_formed],
        train_dataset=Dataset.from_list(rows()),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        args=GRPOConfig(
            output_dir=options.output,
            num_generations=8,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=1 if options.trial else 4,
            max_completion_length=16 if options.trial else 512,
            learning_rate=1e-5,
            beta=0.0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            seed=42,
            **trial,
        ),
    )
    trainer.train()
    trainer.save_model(options.output)
    last = next(row for row in reversed(trainer.state.log_history) if "frac_reward_zero_std" in row)
    print(f"reward {last['reward']:.3f}, groups without a difference {last['frac_reward_zero_std']:.2f}")


if __name__ == "__main__":
    main()
