"""A tiny model that can chat, taught to say exactly what a test needs; and the public OpenAI client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import tinker
from tinker import types as tt
from transformers import AutoTokenizer

from tests.engine.http.engine_process import EOS, KEY, TOKEN, Server, datum, make_tiny
from tests.engine.tiny import tiny_model

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
TOOL: dict[str, Any] = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
TOOLS: list[Any] = [{"type": "function", "function": TOOL}]
GREEDY: dict[str, Any] = {"max_tokens": 120, "temperature": 0}


def make_chat_model(folder: Path) -> Path:
    """Like the tiny model, with a chat template and a context that holds tool schemas byte by byte."""
    make_tiny(folder)
    tiny_model("llama", max_position_embeddings=2048).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def public_client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0, timeout=60)


def prompt_ids(server: Server, model: str, messages: list[dict[str, Any]], **more: Any) -> list[int]:
    """What the server makes of a conversation."""
    body = {"model": model, "messages": messages, "max_tokens": 1, "return_token_ids": True, **more}
    ids: list[int] = server.ask("POST", "/v1/chat/completions", body).json()["prompt_token_ids"]
    return ids


def encode(folder: Path, text: str) -> list[int]:
    ids: list[int] = AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"]
    return ids


def teach(
    server: Server,
    model: str,
    lessons: list[tuple[list[int], list[int]]],
    name: str,
    *,
    alias: str | None = None,
    learning_rate: float = 7e-3,
    loss_at_most: float = 0.05,
) -> str:
    """Trains an adapter until it continues each prompt with its answer; the path of its weights."""
    client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    try:
        training = client.create_lora_training_client(model, rank=32, seed=1)
        data = [
            datum([*prompt, *answer, EOS], weights=[0.0] * (len(prompt) - 1) + [1.0] * (len(answer) + 1))
            for prompt, answer in lessons
        ]
        loss = float("inf")
        while loss > loss_at_most:
            output = training.forward_backward(data, "cross_entropy")
            training.optim_step(tt.AdamParams(learning_rate=learning_rate, grad_clip_norm=1.0)).result()
            loss = output.result().metrics["loss:sum"]
        metadata = {"alias": alias} if alias else None
        path: str = training.save_weights_for_sampler(name, user_metadata=metadata).result().path
        return path
    finally:
        client.close("success").result(timeout=30)
