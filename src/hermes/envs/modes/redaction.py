"""Removes known secrets from what an environment writes for people and datasets.

That are groups and their page, samples of evaluations, tables at W&B.

The secrets are the values of this process's variables whose names look like keys, as everywhere. A text is
redacted; of a sequence whose text has a secret the token ids and everything aligned with them are withheld,
since they spell it too. What is sent to the trainer stays as it is: it never leaves the run's own servers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from hermes.config.secrets import find
from hermes.envs.groups import encode
from hermes.safety.redact import Redactor

WITHHELD = "tokens_withheld"
_ALIGNED = (
    *("tokens", "masks", "advantages", "ref_logprobs", "inference_logprobs"),
    *("distill_token_ids", "distill_logprobs"),
)
_NUMBERS = frozenset((*_ALIGNED, "scores"))


@cache
def process_redactor() -> Redactor:
    """Knows the variables as they are at the first use, which is after `.env` was exported."""
    return Redactor(find(os.environ))


def clean_text(text: str) -> str:
    return process_redactor().text(text)


def clean_json(value: Any) -> Any:
    """A JSON value without secrets."""
    text = json.dumps(value, default=str)
    redacted = clean_text(text)
    return value if redacted == text else json.loads(redacted)


def clean_group(group: Mapping[str, Any], decode: Callable[[Sequence[int]], str]) -> Mapping[str, Any]:
    """The group without secrets; `tokens_withheld` lists the sequences that lost their tokens."""
    redactor = process_redactor()
    if not redactor.has_secrets:
        return group
    texts = {key: value for key, value in group.items() if key not in _NUMBERS}
    text = encode(texts)
    redacted = redactor.text(text)
    withheld = [index for index in range(len(group["tokens"])) if _spells(group, index, redactor, decode)]
    if redacted == text and not withheld:
        return group
    clean = {**group, **json.loads(redacted), WITHHELD: withheld}
    for key in _ALIGNED:
        if clean.get(key) is not None:
            clean[key] = [[] if index in withheld else row for index, row in enumerate(clean[key])]
    return clean


def _spells(
    group: Mapping[str, Any], index: int, redactor: Redactor, decode: Callable[[Sequence[int]], str]
) -> bool:
    """Whether the text or the tokens of a sequence have a secret."""
    messages = group.get("messages")
    if messages is not None and redactor.contains_secret(encode(messages[index])):
        return True
    ids = group["tokens"][index]
    return len(ids) > 0 and redactor.contains_secret(decode(ids))
