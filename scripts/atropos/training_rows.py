"""Rows in the shape of the data sets that training environments read, and files that are in no repository."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

from answers import REVERSED
from evaluation_rows import CHOICES, Row, problem, question

_COUNT = 120
"""Some files hold a hundred rows out for their evaluation."""
_CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expr": "6*7"}}\n</tool_call>'
_TOOLS = (
    'You may call functions. <tools>[{"type": "function", "function": {"name": "calculator", "description": '
    '"Computes", "parameters": {"type": "object", "properties": {"expr": {"type": "string"}}}}}]</tools>'
)


def tables() -> dict[str, list[Row]]:
    """Rows by the data set's name."""
    return {
        name: [make(index) for index in range(_COUNT)]
        for names, make in (
            (("nvidia/AceReason-Math",), problem),
            (("zwhe99/DeepMath-103K",), _deep_math),
            (("NousResearch/XLAM-Atropos",), _tool_conversation),
            (_SEVERAL_CALLS, _conversation_of_several_calls),
            (("AlignmentLab-AI/open-instruct-sharegpt",), _tool_conversation),
            (("NousResearch/TextReversalDataset",), _reversal),
            (("NousResearch/AcademicMCQA",), _academic_choice),
            (("NousResearch/company-fundamentals-prediction-lite",), _fundamentals),
            (("mmaisel1/nous-rl-hackathon-sigma",), _sigma_rule),
            (("brando/minif2f-lean4",), _theorem),
            (("yoniebans/6max-nlh-poker",), _poker_hand),
            (("allenai/RLVR-IFeval",), _constraint),
            (("justus27/pydantic-adherance-test",), _schema),
            (("NousResearch/SWE-smith-oracle",), _patch),
            (("GBaker/MedQA-USMLE-4-options",), _medical_question),
            (("ronig/protein_binding_sequences",), _protein),
            (_PICTURES, _picture),
            (("howard-hou/OCR-VQA",), _book_cover),
            (("NousResearch/Letter-Counting-Eval",), _letters),
        )
        for name in names
    }


_SEVERAL_CALLS = (
    "interstellarninja/toolace_hermes_sequential_tool_use",
    "interstellarninja/hermes_reasoning_tool_use",
)
_PICTURES = (
    "leonardPKU/clevr_cogen_a_train",
    "MMInstruction/Clevr_CoGenT_TrainA_70K_Complex",
    "junyeong-nero/clock-dataset",
)


def local_files() -> dict[str, str]:
    """Files that environments open and their repository does not have.

    Those under `environments/` lie in the checkout, the others in the folder in which a file runs; it is its
    home as well.
    """
    pages = [
        {"id": str(index), "html": f"<img src='{index}.png'>", "issues_to_fix": ["missing_alt_text"]}
        for index in range(_COUNT)
    ]
    scenarios = [{"scenario": f"The cat sits before door {index}."} for index in range(_COUNT)]
    state = {"Piety": 50, "Stability": 40, "Power": 60, "Wealth": 30}
    cards = [{"input": {"kingdom_current_state": state, "choice_history": []}} for _ in range(_COUNT)]
    files = {
        "environments/community/accessibility_env/data/accessibility_dataset.jsonl": _lines(pages),
        "environments/community/cat_behavior_env/cat_scenarios.json": json.dumps(scenarios),
        "environments/community/dynastai/dynastai_cards.json": json.dumps(cards),
        "data/gaia/2023/validation/metadata.jsonl": _lines(
            [_assistant_task(index) for index in range(_COUNT)]
        ),
        **{f"hub/{domain}/train/1.csv": _PLANS for domain in ("hotel", "flight", "restaurant", "attraction")},
        "nltk_data/corpora/words/en": "".join(f"{word}\n" for word in _words()),
    }
    for split in ("train", "dev", "test"):
        questions = [_table_question(index) for index in range(_COUNT)]
        files[f".cache/wikisql/data/{split}.jsonl"] = _lines(questions)
        files[f".cache/wikisql/data/{split}.tables.jsonl"] = _lines([_TABLE])
        files[f".cache/wikisql/data/{split}.db"] = ""
    return files


def _lines(rows: list[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def usual(index: int) -> Row:
    """The columns that most files ask for."""
    text = question(index)
    return {
        "id": str(index),
        "question": text,
        "prompt": text,
        "problem": text,
        "instruction": text,
        "input": text,
        "text": text,
        "answer": "Six times seven is 42.\n#### 42",
        "solution": "It is \\boxed{42}.",
        "final_answer": "42",
        "expected_answer": "42",
        "target": "42",
        "choices": CHOICES,
        "options": CHOICES,
        "label": 1,
        "gold": 1,
        "passage": "Six times seven is 42.",
        "context": "Six times seven is 42.",
        "goal": text,
        "sol1": "41",
        "sol2": "42",
        "format": "one-liner",
        "comedian": "Alex",
        "messages": [{"role": "user", "content": text}],
        "conversation": [{"role": "user", "content": text}, {"role": "assistant", "content": "42"}],
        "uid": str(index),
        "category": "math",
        "overarching_category": "Arithmetic",
        "specific_category": "Products",
        "danger": "low",
        "chosen": ["It is 42."],
        "rejected": ["It is 41.", "It is 40.", "It is 43."],
        "subset": "Math",
        "num_correct": 1,
        "num_incorrect": 3,
    }


def _deep_math(index: int) -> Row:
    return {"question": question(index), "final_answer": "42", "difficulty": 5.0, "topic": "Algebra"}


def _tool_conversation(index: int) -> Row:
    turns = [
        {"from": "system", "value": "You may call the function calculator(expr)."},
        {"from": "human", "value": question(index)},
        {"from": "gpt", "value": _CALL},
    ]
    return {"conversations": turns, "id": str(index)}


def _conversation_of_several_calls(index: int) -> Row:
    thought = "<think>\nI use the tool.\n</think>\n"
    result = {"from": "tool", "value": '<tool_response>\n{"result": 42}\n</tool_response>'}
    turns = [
        {"from": "system", "value": _TOOLS},
        {"from": "human", "value": question(index)},
        {"from": "gpt", "value": thought + _CALL},
        result,
        {"from": "gpt", "value": thought + _CALL},
        result,
        {"from": "gpt", "value": "<think>\nDone.\n</think>\nIt is 42."},
    ]
    return {"conversations": turns, "tools": "[]", "task": question(index), "id": str(index)}


def _reversal(index: int) -> Row:
    return {"id": str(index), "text": REVERSED[::-1], "answer": REVERSED}


def _academic_choice(index: int) -> Row:
    return {"prompt": question(index), "answer": 1, "ground_truth": "B", "options": CHOICES, "id": index}


def _fundamentals(index: int) -> Row:
    outcome = ("maintained", "raised", "reduced")[index % 3]
    facts = {"answer": outcome, "magnitude": "42.0", "fundamental_metric": "revenue"}
    return {"context": f"Company {index} sold more than last year.", **facts}


def _sigma_rule(index: int) -> Row:
    rule = "title: Rule\ndetection:\n  selection:\n    EventID: 42\n  condition: selection"
    return {"prompt": f"Write a Sigma rule for event {index}.", "rule": rule}


def _theorem(index: int) -> Row:
    statement = f"theorem product_{index} : 6 * 7 = 42 := by sorry"
    return {"id": f"product_{index}", "header": "import Mathlib", "formal_statement": statement}


def _poker_hand(index: int) -> Row:
    stage = ("preflop", "flop", "turn", "river")[index % 4]
    return {
        "hand_id": str(index),
        "game_stage": stage,
        "pokergpt_prompt": f"Hand {index}: you hold two aces. What do you do?",
        "formatted_winning_action": "raise 42",
        "winning_action": "raise 42",
        "bb_won": 4.2,
    }


def _constraint(index: int) -> Row:
    kinds: tuple[Row, ...] = (
        {"func_name": "verify_keywords", "keyword_list": ["answer"]},
        {"func_name": "validate_word_constraint", "N": 5, "quantifier": "at least"},
        {"func_name": "verify_letter_frequency", "letter": "t", "N": 2},
    )
    messages = [{"role": "user", "content": question(index)}]
    truth = json.dumps(kinds[index % len(kinds)])
    return {"messages": messages, "ground_truth": truth, "constraint": "made", "dataset": "ifeval"}


def _schema(index: int) -> Row:
    code = "class Product(BaseModel):\n    name: str\n    count: int\n"
    information = {"pydantic_config": code, "model_name": "Product"}
    texts = {"prompt": f"Write product {index} as JSON.\n{code}", "task_type": "generation"}
    return {"problem_id": str(index), **texts, "verification_info": json.dumps(information)}


def _patch(index: int) -> Row:
    file = f"[start of a.py]\n1 x = {index}\n[end of a.py]"
    patch = f"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = {index}\n+x = 42\n"
    return {"problem_statement": question(index), "text": file, "patch": patch, "instance_id": str(index)}


def _medical_question(index: int) -> Row:
    options = dict(zip("ABCD", CHOICES, strict=True))
    return {"question": question(index), "answer": CHOICES[1], "options": options, "answer_idx": "B"}


def _protein(index: int) -> Row:
    return {
        "target": "MKTAYIAKQR" + "AG" * (1 + index % 3),
        "binder": "GSHMA",
        "receptor": "GSHMA",
        "peptide": "MKT",
    }


def _picture(index: int) -> Row:
    texts = {"problem": "How many squares are there?", "solution": "<answer> 42 </answer>"}
    return {"image": _png(index), **texts, "hour": index % 12, "minute": index}


def _book_cover(index: int) -> Row:
    return {"image": _png(index), "questions": ["What is the number?"], "answers": ["42"]}


def _letters(index: int) -> Row:
    return {
        "Prompt": f"How many letters e are in the word number {index}, seven?",
        "Answer": "2",
        "DifficultyLevel": 1 + index % 3,
        "_text": "seven",
        "_target_letters": ["e"],
        "_expected_counts": json.dumps({"e": 2}),
    }


def _assistant_task(index: int) -> Row:
    return {
        "Question": question(index),
        "Final answer": "42",
        "Level": 1,
        "task_id": str(index),
        "file_name": "",
    }


_TABLE = {
    "id": "table",
    "header": ["name", "count"],
    "types": ["text", "real"],
    "rows": [["six", 6], ["seven", 7]],
}


_PLANS = "ID,Filled_Template,Filled_Plan\n" + "".join(
    f"{index},assistant: How can I help?,\n{index},user: Find a place in city {index}.,search(city={index})\n"
    for index in range(10)
)


def _table_question(index: int) -> Row:
    sql: dict[str, Any] = {"sel": 1, "agg": 0, "conds": [[0, 0, ("six", "seven")[index % 2]]]}
    return {"table_id": "table", "question": f"{question(index)} Ask the table.", "sql": sql}


def _words() -> list[str]:
    return [
        first + second
        for first in ("seven", "forty", "number", "letter")
        for second in ("", "s", "ing", "tree")
    ]


def _png(shade: int) -> str:
    """A picture of four pixels, in base64."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes([0, shade, shade, 0, shade, shade]))
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return base64.b64encode(file).decode()
