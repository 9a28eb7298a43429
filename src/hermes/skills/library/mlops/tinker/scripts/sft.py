"""Fine-tune a LoRA adapter through the Tinker API on chat rows, sample it, and save it.

Works with `hermes engine serve` (TINKER_BASE_URL=http://127.0.0.1:8001 TINKER_API_KEY=tml-local) and with the
managed service (TINKER_API_KEY alone). Rows are JSON lines with `messages`; without a file one row
teaches one fact, so that a trial shows a falling loss and a changed answer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

FACT = [
    {"role": "user", "content": "What is the word of the day?"},
    {"role": "assistant", "content": "The word of the day is zugzwang."},
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", type=Path, help="JSONL file with messages")
    parser.add_argument("--base-model", default="hermes/smollm2")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--name", default="sft")
    return parser.parse_args()


def render(tokenizer: Any, messages: list[dict[str, str]], **options: Any) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return tokenizer.encode(text, add_special_tokens=False)


def to_datum(tokenizer: Any, messages: list[dict[str, str]]) -> Any:
    """The last message is learned. Position i predicts token i + 1, so both lists are shifted by one."""
    from tinker import types

    prompt = render(tokenizer, messages[:-1], add_generation_prompt=True)
    tokens = render(tokenizer, messages)
    if tokens[: len(prompt)] != prompt:
        raise SystemExit("The template renders the prompt alone differently: train on token ids instead.")
    weights = [0.0] * len(prompt) + [1.0] * (len(tokens) - len(prompt))
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights[1:]},
    )


def main() -> None:
    options = arguments()
    import tinker
    from tinker import types

    lines = options.data.read_text().splitlines() if options.data else []
    rows = [json.loads(line)["messages"] for line in lines] or [FACT]
    service = tinker.ServiceClient()
    trainer = service.create_lora_training_client(base_model=options.base_model, rank=options.rank, seed=0)
    tokenizer = trainer.get_tokenizer()
    data = [to_datum(tokenizer, row) for row in rows]
    for step in range(options.steps):
        batch = [data[(step * options.batch + index) % len(data)] for index in range(options.batch)]
        # Both calls are submitted before either result is read, so the service does not wait for us.
        gradient = trainer.forward_backward(batch, loss_fn="cross_entropy")
        update = trainer.optim_step(types.AdamParams(learning_rate=options.learning_rate))
        result = gradient.result()
        update.result()
        learned = sum(sum(datum.loss_fn_inputs["weights"].data) for datum in batch)
        print(f"step {step} loss per token {result.metrics['loss:sum'] / learned:.4f}")
    sampler = trainer.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints(render(tokenizer, rows[0][:-1], add_generation_prompt=True))
    params = types.SamplingParams(max_tokens=32, temperature=0.0, stop=tokenizer.eos_token)
    answer = sampler.sample(prompt=prompt, num_samples=1, sampling_params=params).result()
    print("sample:", tokenizer.decode(answer.sequences[0].tokens))
    print("weights:", trainer.save_state(name=options.name).result().path)


if __name__ == "__main__":
    main()
