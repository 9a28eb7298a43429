"""The answers of the scripted model: some are right, some wrong, some in no form that a file reads."""

from __future__ import annotations

import json

ANSWERS = (
    "<think>\nSix times seven is 42.\n</think>\nThe answer is \\boxed{42}.\n<answer>42</answer>\n#### 42",
    "<think>\nThe second choice fits.\n</think>\nAnswer: B\n\\boxed{B}\n<answer>B</answer>",
    "I do not know the answer to this question. meow",
    '<think>\nI use the tool.\n</think>\n<tool_call>\n{"name": "calculator", "arguments": {"expr": "6*7"}}\n'
    "</tool_call>",
    '<think>\nI stay.\n</think>\n<tool_call>\n{"name": "take_action", "arguments": {"action": "stick"}}\n'
    "</tool_call>",
    "",
    "<think>\nIt is true.\n</think>\nFinal answer: (B). yes, ANSWER: 42, **A**",
    "<think>\nI judge.\n</think>\nThe first is better: [[A>>B]]. Rating: [[7]]\nScore: 2\nScore: 1\npurr",
    '<think>\nI write it down.\n</think>\n```json\n{"name": "six", "count": 42}\n```\n'
    "\\boxed{SELECT count FROM data WHERE name = 'six'}",
)

REVERSED = "neves semit xis"
_EFFECTS = ("Piety", "Stability", "Power", "Wealth")
_CARD = {
    "Character": "Alex",
    "Prompt": "What is six times seven?",
    "category": "wealth",
    **{f"{side}_Choice": side for side in ("Left", "Right")},
    **{f"{side}_{effect}": 1 for side in ("Left", "Right") for effect in _EFFECTS},
}
_PRODUCT = {
    "json": '{"name": "six", "count": 42}',
    "yaml": "name: six\ncount: 42",
    "toml": 'name = "six"\ncount = 42',
    "xml": "<product><name>six</name><count>42</count></product>",
}
ANSWERS_OF = {
    "dynastai_server.py": (json.dumps(_CARD), json.dumps({**_CARD, "category": "piety"})),
    "text_reversal_environment.py": (
        f"<think>\nI turn it round.\n</think>\n<reversed_text>\n{REVERSED}\n</reversed_text>",
    )
    * 4,
    "math_server_zero.py": tuple(
        f" I multiply six and seven. </think> <answer> The answer is \\boxed{{{number}}}. </answer>"
        for number in (42, 41, 42, 40)
    ),
    "fundamental_prediction_environment.py": tuple(
        f"<think>\nI look.\n</think>\nThe revenue will be: {change} and the magnitude will be: 42.0%"
        for change in ("maintained", "raised", "reduced")
    ),
    "pydantic_schema_following_environment.py": tuple(
        f"<think>\nI write it down.\n</think>\n{begin}\n{text}\n{end}"
        for kind, text in _PRODUCT.items()
        for begin, end in ((f"<{kind}_output>", f"</{kind}_output>"), (f"```{kind}", "```"))
    ),
    "letter_counting_environment.py": tuple(
        f"<think>\nI count.\n</think>\nThere are some.\n<answer>{count}</answer>" for count in (0, 1, 1, 2)
    ),
}
"""More answers for files that give no group where all answers have one score."""
