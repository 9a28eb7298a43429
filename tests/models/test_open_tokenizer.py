"""The tokenizer that is opened without torch is the one that AutoTokenizer returns."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hermes.models.local.bundled import prepare
from hermes.models.tokens.tokenizer import open_tokenizer

TEXTS = ("Grüße, 12345 tokens!", "a  b\n\n\tc", "<|im_start|>user\nhi<|im_end|>", "日本語 🙂")
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


VOCABULARY = 2000
"""Of the 49,152 tokens: a small file is opened many times in a moment."""


@pytest.fixture
def bundled_model(bundled_home: Path) -> Path:
    return prepare(bundled_home)


@cache
def cut_vocabulary(file: Path) -> str:
    """A tokenizer.json with the first tokens only, and the merges that they need."""
    tokenizer = json.loads(file.read_text())
    model = tokenizer["model"]
    model["vocab"] = {token: index for token, index in model["vocab"].items() if index < VOCABULARY}
    model["merges"] = [
        merge for merge in model["merges"] if {*merge, "".join(merge)} <= model["vocab"].keys()
    ]
    return json.dumps(tokenizer)


def make_folder(source: Path, folder: Path, model_type: str, name: str | None) -> Path:
    """The bundled tokenizer, cut, under another model's type and class."""
    folder.mkdir()
    (folder / "tokenizer.json").write_text(cut_vocabulary(source / "tokenizer.json"))
    (folder / "chat_template.jinja").write_bytes((source / "chat_template.jinja").read_bytes())
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    config = json.loads((source / "tokenizer_config.json").read_text())
    config.pop("tokenizer_class")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | ({"tokenizer_class": name} if name else {}))
    )
    return folder


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral", "phi3"])
@pytest.mark.parametrize("name", ["TokenizersBackend", "PreTrainedTokenizerFast", "Qwen2Tokenizer", None])
def test_it_is_that_of_auto_tokenizer(
    bundled_model: Path, tmp_path: Path, model_type: str, name: str | None
) -> None:
    folder = make_folder(bundled_model, tmp_path / "model", model_type, name)
    expected = AutoTokenizer.from_pretrained(folder)
    tokenizer = open_tokenizer(folder)
    assert type(tokenizer) is type(expected)
    assert tokenizer.special_tokens_map == expected.special_tokens_map
    assert tokenizer.model_max_length == expected.model_max_length
    for text in TEXTS:
        ids = expected.encode(text)
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == expected.decode(ids)
    options = {"tokenize": False, "add_generation_prompt": True}
    assert tokenizer.apply_chat_template(CHAT, **options) == expected.apply_chat_template(CHAT, **options)


def test_the_process_of_an_environment_does_without_torch(bundled_model: Path) -> None:
    program = (
        "import sys; from hermes.envs.tokenise import encode_chat, load_tokenizer;"
        "import hermes.envs.base, hermes.envs.builtin.calculator;"
        f"tokenizer = load_tokenizer({str(bundled_model)!r});"
        "encode_chat(tokenizer, [{'role': 'user', 'content': 'Hi'}]);"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_is_no_tokenizer_is_an_error_of_transformers(tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError)):
        open_tokenizer(tmp_path)
