"""Rows in the shape of the public data sets that environment files read, written for the comparison.

The rows under `*` have the columns that most files ask for, so that a file whose data set is not named here
can still run. Every answer is 42 or the choice B: the scripted model gives both now and then.
"""

from __future__ import annotations

import json
from typing import Any

_COUNT = 60
_CHOICES = ["one", "forty-two", "three", "four"]
_QUESTION = "What is six times seven, in version {index} of this question?"


def tables() -> dict[str, list[dict[str, Any]]]:
    """Rows by the data set's name."""
    return {
        "*": [_usual(index) for index in range(_COUNT)],
        "google/IFEval": [_instruction(index) for index in range(8)],
        "nvidia/AceReason-Math": [_problem(index) for index in range(_COUNT)],
        "HuggingFaceH4/aime_2024": [_problem(index) for index in range(8)],
        "HuggingFaceH4/MATH-500": [_problem(index) for index in range(8)],
        "allenai/ai2_arc": [_labelled_choices(index) for index in range(8)],
        "allenai/openbookqa": [_labelled_choices(index) for index in range(8)],
        "allenai/winogrande": [_sentence(index) for index in range(8)],
        "lighteval/mmlu": [_numbered_choice(index) for index in range(8)],
        "TIGER-Lab/MMLU-Pro": [_lettered_choice(index) for index in range(8)],
        "NousResearch/XLAM-Atropos": [_tool_conversation(index) for index in range(_COUNT)],
        "NousResearch/TextReversalDataset": [_reversal(index) for index in range(_COUNT)],
    }


def _question(index: int) -> str:
    return _QUESTION.format(index=index)


def _usual(index: int) -> dict[str, Any]:
    question = _question(index)
    return {
        "id": str(index),
        "question": question,
        "prompt": question,
        "problem": question,
        "instruction": question,
        "input": question,
        "text": question,
        "answer": "Six times seven is 42.\n#### 42",
        "solution": "It is \\boxed{42}.",
        "final_answer": "42",
        "expected_answer": "42",
        "target": "42",
        "choices": _CHOICES,
        "options": _CHOICES,
        "label": 1,
        "gold": 1,
        "passage": "Six times seven is 42.",
        "context": "Six times seven is 42.",
        "goal": question,
        "sol1": "41",
        "sol2": "42",
        "messages": [{"role": "user", "content": question}],
        "conversation": [{"role": "user", "content": question}, {"role": "assistant", "content": "42"}],
    }


def _problem(index: int) -> dict[str, Any]:
    question = _question(index)
    names = {"problem": question, "question": question, "unique_id": str(index), "id": index}
    return {**names, "answer": "42", "solution": "It is \\boxed{42}.", "subject": "Algebra", "level": 1}


def _instruction(index: int) -> dict[str, Any]:
    kinds = (
        ("punctuation:no_comma", {}),
        ("length_constraints:number_words", {"num_words": 5, "relation": "at least"}),
        ("keywords:existence", {"keywords": ["answer"]}),
        ("change_case:english_lowercase", {}),
    )
    kind, arguments = kinds[index % len(kinds)]
    return {
        "key": index,
        "prompt": f"{_question(index)} Follow the rule {kind}.",
        "instruction_id_list": [kind],
        "kwargs": [json.dumps(arguments)],
    }


def _labelled_choices(index: int) -> dict[str, Any]:
    choices = {"text": _CHOICES, "label": ["A", "B", "C", "D"]}
    names = {"id": str(index), "question": _question(index), "question_stem": _question(index)}
    return {**names, "choices": choices, "answerKey": "B", "fact1": "Six times seven is 42."}


def _sentence(index: int) -> dict[str, Any]:
    return {
        "sentence": f"In version {index} six times seven is _ and no other number.",
        "option1": "41",
        "option2": "42",
        "answer": "2",
    }


def _numbered_choice(index: int) -> dict[str, Any]:
    return {"question": _question(index), "choices": _CHOICES, "answer": 1, "subject": "arithmetic"}


def _lettered_choice(index: int) -> dict[str, Any]:
    names = {"question_id": index, "question": _question(index), "category": "math", "src": "made"}
    return {**names, "options": _CHOICES, "answer": "B", "answer_index": 1, "cot_content": ""}


def _tool_conversation(index: int) -> dict[str, Any]:
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expr": "6*7"}}\n</tool_call>'
    turns = [
        {"from": "system", "value": "You may call the function calculator(expr)."},
        {"from": "human", "value": _question(index)},
        {"from": "gpt", "value": call},
    ]
    return {"conversations": turns, "id": str(index)}


def _reversal(index: int) -> dict[str, Any]:
    text = _question(index)
    return {"prompt": f"Write this text backwards: {text}", "answer": text[::-1], "text": text}
