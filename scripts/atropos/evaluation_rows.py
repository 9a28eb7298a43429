"""Rows in the shape of the data sets that the files under `eval_environments` read.

The right answer is 42, the second choice, or yes: the scripted model gives each of them now and then.
"""

from __future__ import annotations

import json
from typing import Any

CHOICES = ["one", "forty-two", "three", "four"]
_COUNT = 8
_QUESTION = "What is six times seven, in version {index} of this question?"

Row = dict[str, Any]


def tables() -> dict[str, list[Row]]:
    """Rows by the data set's name; `name#split` where its splits differ."""
    return {
        name: [make(index) for index in range(_COUNT)]
        for names, make in (
            (("google/IFEval",), _instruction),
            (("HuggingFaceH4/aime_2024", "HuggingFaceH4/MATH-500", "lighteval/SimpleQA"), problem),
            (("HuggingFaceH4/math-500", "math-ai/amc23", "lighteval/aimo_progress_prize_1"), problem),
            (("math-ai/minervamath", "cais/hle"), problem),
            (("math-ai/olympiadbench", "Hothan/OlympiadBench"), _listed_answer),
            (("allenai/ai2_arc", "allenai/openbookqa"), _labelled_choices),
            (("allenai/winogrande",), _sentence),
            (("lighteval/mmlu",), _numbered_choice),
            (("TIGER-Lab/MMLU-Pro",), _lettered_choice),
            (("lighteval/boolq_helm",), _yes_or_no),
            (("lighteval/drop_harness",), _passage),
            (("Idavidrein/gpqa",), _graduate_question),
            (("Rowan/hellaswag",), _ending),
            (("allenai/social_i_qa",), _social_question),
            (("arc-agi-community/arc-agi-2",), _grid),
            (("lighteval/bbh",), _big_bench),
            (("TAUR-Lab/MuSR",), _narrative),
            (("Eureka-Lab/PHYBench",), _physics),
            (("pubmed_qa",), _abstract),
            (("lighteval/mt-bench",), _two_turns),
            (("MixEval/MixEval#free_form",), _free_form),
            (("MixEval/MixEval#multiple_choice",), _multiple_choice),
        )
        for name in names
    } | {
        f"dmayhem93/agieval-{name}": [_indexed_choice(name, index) for index in range(2)] for name in _AGIEVAL
    }


_AGIEVAL = (
    "aqua-rat",
    "logiqa-en",
    "lsat-ar",
    "lsat-lr",
    "lsat-rc",
    "sat-en",
    "sat-en-without-passage",
    "sat-math",
)


def question(index: int) -> str:
    return _QUESTION.format(index=index)


def problem(index: int) -> Row:
    text = question(index)
    names = {"problem": text, "question": text, "unique_id": str(index), "id": index}
    return {**names, "answer": "42", "solution": "It is \\boxed{42}.", "subject": "Algebra", "level": 1}


def _instruction(index: int) -> Row:
    kinds = (
        ("punctuation:no_comma", {}),
        ("length_constraints:number_words", {"num_words": 5, "relation": "at least"}),
        ("keywords:existence", {"keywords": ["answer"]}),
        ("change_case:english_lowercase", {}),
    )
    kind, arguments = kinds[index % len(kinds)]
    return {
        "key": index,
        "prompt": f"{question(index)} Follow the rule {kind}.",
        "instruction_id_list": [kind],
        "kwargs": [json.dumps(arguments)],
    }


def _listed_answer(index: int) -> Row:
    kinds = {"answer_type": "Numerical", "is_multiple_answer": False, "unit": "", "language": "English"}
    return {"question": question(index), "final_answer": ["42"], "subject": "Math", **kinds}


def _labelled_choices(index: int) -> Row:
    choices = {"text": CHOICES, "label": ["A", "B", "C", "D"]}
    names = {"id": str(index), "question": question(index), "question_stem": question(index)}
    return {**names, "choices": choices, "answerKey": "B", "fact1": "Six times seven is 42."}


def _sentence(index: int) -> Row:
    text = f"In version {index} six times seven is _ and no other number."
    return {"sentence": text, "option1": "41", "option2": "42", "answer": "2"}


def _numbered_choice(index: int) -> Row:
    return {"question": question(index), "choices": CHOICES, "answer": 1, "subject": "arithmetic"}


def _lettered_choice(index: int) -> Row:
    names = {"question_id": index, "question": question(index), "category": "math", "src": "made"}
    return {**names, "options": CHOICES, "answer": "B", "answer_index": 1, "cot_content": ""}


def _yes_or_no(index: int) -> Row:
    """Both answers occur: the file divides by the number of each."""
    number, answer = (42, "Yes") if index % 2 else (41, "No")
    question = f"is six times seven {number} in version {index}"
    return {"passage": "Six times seven is 42.", "question": question, "answer": answer}


def _passage(index: int) -> Row:
    date = {"day": "", "month": "", "year": ""}
    answer = {"number": "42", "date": date, "spans": [""]}
    validated = {"number": ["42"], "date": [date], "spans": [[""]]}
    texts = {"passage": f"Version {index}: six times seven is 42.", "question": question(index)}
    return {**texts, "answer": answer, "validated_answers": validated}


def _graduate_question(index: int) -> Row:
    wrong = {f"Incorrect Answer {place}": CHOICES[place - 1] for place in (1, 2, 3)}
    right = {"Correct Answer": "42", "Subdomain": ("Algebra", "Optics")[index % 2]}
    return {"Question": question(index), **right, **wrong}


def _ending(index: int) -> Row:
    begin = {"activity_label": "Arithmetic", "ctx_a": question(index), "ctx_b": "the answer is"}
    return {**begin, "endings": CHOICES, "label": "1"}


def _social_question(index: int) -> Row:
    answers = {"answerA": CHOICES[0], "answerB": CHOICES[1], "answerC": CHOICES[2]}
    return {
        "context": f"Alex multiplies, case {index}.",
        "question": question(index),
        **answers,
        "label": "2",
    }


def _grid(index: int) -> Row:
    cells = [[index % 10, 1], [2, 3]]
    turned = [[2, index % 10], [3, 1]]
    pair = {"input": cells, "output": turned}
    return {"fewshots": [pair, {"input": turned, "output": cells}], "question": [pair]}


def _big_bench(index: int) -> Row:
    return {
        "input": question(index),
        "choices": CHOICES,
        "target_idx": 1,
        "task_prefix": "Answer the question.",
        "example_input_prefix": "\nQuestion: ",
        "choice_prefix": "\n  Choices: ",
    }


def _narrative(index: int) -> Row:
    texts = {"narrative": f"In story {index} Alex multiplies.", "question": question(index)}
    return {**texts, "choices": str(CHOICES), "answer_index": 1, "answer_choice": CHOICES[1]}


def _physics(index: int) -> Row:
    texts = {"content": question(index), "solution": "It is 42.", "answer": "$$42$$"}
    return {"id": index, "tag": ("MECHANICS", "OPTICS")[index % 2], **texts}


def _abstract(index: int) -> Row:
    texts = {"QUESTION": f"Is six times seven 42 in study {index}?", "CONTEXTS": ["It is 42.", "Always."]}
    return {"PUBID": index, **texts, "final_decision": ("yes", "no", "maybe")[index % 3]}


def _two_turns(index: int) -> Row:
    turns = [question(index), "And what is seven times six?"]
    return {"question_id": index, "category": "math", "turns": turns, "reference": ["42", "42"]}


def _free_form(index: int) -> Row:
    names = {"benchmark_name": "made", "problem_type": "free-form", "context": ""}
    return {"prompt": question(index), "target": ["42"], **names}


def _multiple_choice(index: int) -> Row:
    names = {"benchmark_name": "made", "problem_type": "single-choice", "context": ""}
    return {"prompt": question(index), "options": CHOICES, "target": ["1"], **names}


def _indexed_choice(name: str, index: int) -> Row:
    choices = [f"({letter}){text}" for letter, text in zip("ABCD", CHOICES, strict=True)]
    return {"query": f"{question(index)} ({name})", "choices": choices, "gold": [1]}
