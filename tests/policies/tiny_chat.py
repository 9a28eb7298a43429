"""A tiny model with a chat template, which a policy can stand on."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from tests.engine.http.engine_process import make_tiny

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def make_tiny_chat(folder: Path) -> Path:
    made = make_tiny(folder)
    tokenizer = AutoTokenizer.from_pretrained(made)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(made)
    return made
