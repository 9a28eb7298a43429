"""Text of others that a model is shown as data, in a spelling that no server reads as anything else.

Many servers turn the text of a control token (`<|im_end|>`, `</s>`, `[INST]`) into the token itself,
wherever it stands, so that a graded answer could end its own message and begin one of the system.
`inert_json` spells no such token. It does not keep a model from believing what the text says.
"""

from __future__ import annotations

import json
import re

from hermes.core import JSON

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_CONTROL_START = re.compile(r"[<\ud800-\udfff\u2581\uff5c]|\[(?=/?[A-Za-z_]{2,40}\])")
"""What control tokens begin with or contain, and halves of surrogate pairs, which cannot be sent."""


def inert_json(data: JSON) -> str:
    """JSON that parses to this data, without the text of a control token."""
    return _STRING.sub(_spell, json.dumps(data, ensure_ascii=False))


def _spell(string: re.Match[str]) -> str:
    return _CONTROL_START.sub(lambda match: f"\\u{ord(match[0]):04x}", string[0])
