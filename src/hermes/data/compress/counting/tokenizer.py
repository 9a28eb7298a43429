"""From a tokenizer's name to a `TokenizerSpec`: a local folder, the hub, tiktoken, or the bundled model.

A name is tried as: the bundled model's, an existing folder, a tiktoken encoding or model, a hub name.
No code of a tokenizer is executed unless `trust_remote_code` is set; a chat template runs
in a sandbox. Folders whose tokenizer.json is the whole tokenizer are read without importing transformers,
which takes seconds; every other one is opened by transformers, so that its special rules apply.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from hermes.core import JSONObject, parse_object
from hermes.data.compress.counting.tokens import TokenizerSpec
from hermes.disk.files import read_text
from hermes.errors import HermesError, MissingDependencyError, UsageError
from hermes.models.tokens.tokenizer import open_tokenizer

BUNDLED = "hermes/smollm2"
_PLAIN_CLASSES = {"TokenizersBackend", "PreTrainedTokenizerFast"}
"""Classes that take tokenizer.json as it is."""
_TEMPLATE_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
)
"""How OpenAI's chat models lay out a conversation, as far as that is published."""


def find_tokenizer(
    name: str, home: Path, *, trust_remote_code: bool = False, progress: Callable[[str], None] | None = None
) -> TokenizerSpec:
    """The tokenizer called `name`; UsageError if there is none, or none with a chat template."""
    if name == BUNDLED:
        from hermes.models.local.bundled import prepare

        return _from_folder(name, prepare(home, progress), trust_remote_code)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _from_folder(name, folder, trust_remote_code)
    encoding = None if "/" in name else _tiktoken_encoding(name)
    if encoding is not None:
        return _from_tiktoken(name, encoding)
    return _from_transformers(name, name, trust_remote_code)


def _from_folder(name: str, folder: Path, trust_remote_code: bool) -> TokenizerSpec:
    config = _read_json(folder / "tokenizer_config.json")
    if config.get("tokenizer_class") not in _PLAIN_CLASSES or not (folder / "tokenizer.json").is_file():
        return _from_transformers(name, str(folder), trust_remote_code)
    template_file = folder / "chat_template.jinja"
    template = read_text(template_file) if template_file.is_file() else config.get("chat_template")
    special = {key: _token_text(config[key]) for key in _TEMPLATE_NAMES if config.get(key) is not None}
    text = read_text(folder / "tokenizer.json") or ""
    return TokenizerSpec(name, _checked_template(name, template), special, tokenizer_json=text)


def _from_transformers(name: str, source: str, trust_remote_code: bool) -> TokenizerSpec:
    if importlib.util.find_spec("transformers") is None:
        raise MissingDependencyError("transformers", "train", f"The tokenizer '{name}'")
    try:
        tokenizer = open_tokenizer(source, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError, KeyError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UsageError(
            f"there is no tokenizer '{name}': {reason}",
            f"name a folder with a tokenizer.json, a hub name, a tiktoken name, or {BUNDLED}",
        ) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UsageError(
            f"'{name}' has no fast tokenizer", "use a model that has a tokenizer.json, or convert it"
        )
    special = {
        key: str(value) for key, value in tokenizer.special_tokens_map.items() if isinstance(value, str)
    }
    template = tokenizer.chat_template
    return TokenizerSpec(name, _checked_template(name, template), special, tokenizer_json=backend.to_str())


def _checked_template(name: str, template: object) -> str:
    if isinstance(template, str) and template.strip():
        return template
    raise UsageError(
        f"the tokenizer '{name}' has no chat template, so a conversation has no exact length in it",
        "name the chat (instruct) version of the model",
    )


def _tiktoken_encoding(name: str) -> str | None:
    try:
        import tiktoken
    except ImportError:
        return None
    if name in tiktoken.list_encoding_names():
        return name
    try:
        return tiktoken.encoding_name_for_model(name)
    except KeyError:
        return None


def _from_tiktoken(name: str, encoding: str) -> TokenizerSpec:
    import tiktoken

    try:
        tiktoken.get_encoding(encoding)
    except (OSError, ValueError) as error:
        raise HermesError(
            f"the tiktoken encoding '{encoding}' cannot be loaded: {str(error)[:160]}",
            "it is downloaded once: go online, or set TIKTOKEN_CACHE_DIR to where it lies",
        ) from error
    return TokenizerSpec(name, _CHATML, {"start": "<|im_start|>", "end": "<|im_end|>"}, encoding=encoding)


def _token_text(token: str | JSONObject) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _read_json(path: Path) -> JSONObject:
    try:
        return parse_object(read_text(path) or "{}")
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", "repair it, or name another tokenizer") from error
