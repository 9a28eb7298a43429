"""Measure or remove the direction in a model's hidden states that separates two sets of prompts.

`measure MODEL --first a.txt --second b.txt` prints how well each layer separates the sets. `ablate` also
writes a copy of the model without that direction. `trial` proves the arithmetic with a random model on a CPU.
The files have one prompt a line. `ablation.json` in the copy says what was done. SKILL.md has the cautions.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any


def states(model: Any, tokenizer: Any, prompts: list[str]) -> Any:
    """The hidden state of the last token of each prompt, [layers + 1, prompts, width], in float32."""
    import torch

    columns = []
    for prompt in prompts:
        text = prompt
        if tokenizer.chat_template:
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=not tokenizer.chat_template)
        with torch.no_grad():
            output = model(**ids.to(model.device), output_hidden_states=True)
        columns.append(torch.stack([layer[0, -1].float().cpu() for layer in output.hidden_states]))
    return torch.stack(columns, dim=1)


def separation(first: Any, second: Any) -> tuple[Any, Any]:
    """For each layer the unit difference of the means, and its length in standard deviations."""
    difference = first.mean(dim=1) - second.mean(dim=1)
    direction = difference / difference.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    a = (first * direction[:, None]).sum(-1)
    b = (second * direction[:, None]).sum(-1)
    spread = ((a.var(dim=1) + b.var(dim=1)) / 2).sqrt().clamp_min(1e-12)
    return direction, (a.mean(dim=1) - b.mean(dim=1)).abs() / spread


def writers(model: Any) -> list[Any]:
    """The weights that write into the residual stream: embedding, and outputs of attention and MLP."""
    matrices = [model.get_input_embeddings().weight]
    for layer in model.model.layers:
        matrices += [layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight]
    return matrices


def ablate(model: Any, direction: Any, share: float) -> None:
    """W ← W - share · r rᵀ W for every weight whose output is the residual stream."""
    import torch

    for weight in writers(model):
        unit = direction.to(weight.device, torch.float32)
        matrix = weight.data.float()
        # An embedding has the residual stream in its columns, a linear layer in its rows.
        along_rows = weight is model.get_input_embeddings().weight
        part = torch.outer(matrix @ unit, unit) if along_rows else torch.outer(unit, unit @ matrix)
        weight.data.copy_((matrix - share * part).to(weight.dtype))


def residual_share(model: Any, direction: Any) -> float:
    """The largest part of any writing weight that still points along the direction."""
    embedding = model.get_input_embeddings().weight
    parts = []
    for weight in writers(model):
        matrix = weight.data.float()
        along = matrix @ direction if weight is embedding else direction @ matrix
        parts.append((along.norm() / matrix.norm()).item())
    return max(parts)


def trial() -> int:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(shape)
    direction = torch.nn.functional.normalize(torch.randn(32), dim=0)
    before = residual_share(model, direction)
    ablate(model, direction, 1.0)
    after = residual_share(model, direction)
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        hidden = model(input_ids=ids, output_hidden_states=True).hidden_states[:-1]
    projection = max((layer @ direction).abs().max().item() for layer in hidden)
    print(f"largest share along the direction: {before:.4f} before, {after:.2e} after")
    print(f"largest projection of a hidden state: {projection:.2e}")
    return 0 if after < 1e-5 and projection < 1e-4 else 1


def load(name: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(name, dtype="auto").eval()
    return model, AutoTokenizer.from_pretrained(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["measure", "ablate", "trial"])
    parser.add_argument("model", nargs="?", help="Folder or name")
    parser.add_argument("--first", type=Path, help="Prompts of the first set, one a line")
    parser.add_argument("--second", type=Path, help="Prompts of the second set")
    parser.add_argument("--layer", type=int, help="Default: the best one in the middle half")
    parser.add_argument("--share", type=float, default=1.0, help="1 removes the direction, 0.5 halves it")
    parser.add_argument("--output", type=Path, default=Path(tempfile.gettempdir()) / "ablated")
    options = parser.parse_args()
    if options.action == "trial":
        return trial()
    if not (options.model and options.first and options.second):
        parser.error("MODEL, --first and --second are needed")
    model, tokenizer = load(options.model)
    texts = [path.read_text() for path in (options.first, options.second)]
    sets = [[line for line in text.splitlines() if line.strip()] for text in texts]
    if min(len(prompts) for prompts in sets) < 2:
        parser.error("each set needs at least two prompts")
    direction, scores = separation(*(states(model, tokenizer, prompts) for prompts in sets))
    for index, score in enumerate(scores.tolist()):
        print(f"layer {index}: {score:.2f} standard deviations apart")
    if options.action == "measure":
        return 0
    count = len(scores)
    middle = range(count // 4, 3 * count // 4 + 1)
    best = max(middle, key=lambda index: scores[index].item())
    layer = best if options.layer is None else options.layer
    ablate(model, direction[layer], options.share)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    record = {"base": options.model, "change": "direction ablated", "layer": layer, "share": options.share}
    (options.output / "ablation.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"{options.output} holds the changed model; layer {layer}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
