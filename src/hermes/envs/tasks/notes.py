"""A note with several facts of the same kind, a question about one of them, and the form of the answer.

The answer stands in the note, so that a small model can find it; beside it stand others that would be
wrong, and an answer that names those too is wrong. The note is long: repeating it keeps no word limit.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from hermes.envs.rewards.combine import gated
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.envs.rewards.schema import read_json
from hermes.envs.rewards.text import exact_match, mentions, word_limit
from hermes.envs.tasks.vocabulary import CITIES, COLOURS, PEOPLE, SUBJECTS, THINGS

FORMS = ("tag", "json", "bullets", "sentence")
_FACTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("{who} moved to {value} some years ago and still likes the place.", "Where did {who} move?", CITIES),
    ("{who} spends every free evening on {value}.", "What does {who} do in the evening?", SUBJECTS),
    ("{who} sold an old {value} at the market last week.", "What did {who} sell?", THINGS),
    ("{who} painted the front door {value}.", "Which colour is {who}'s door?", tuple(COLOURS)),
)


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    question: str
    answer: str
    distractors: tuple[str, ...]
    """What the note says of others."""

    @property
    def key(self) -> str:
        return f"{self.question} {self.answer}"


@dataclass(frozen=True, slots=True)
class FormTask:
    note: Note
    form: str

    @property
    def key(self) -> str:
        return self.note.key


def make_note(chance: random.Random) -> Note:
    sentence, question, pool = chance.choice(_FACTS)
    people, values = chance.sample(PEOPLE, 4), chance.sample(list(pool), 4)
    lines = [sentence.format(who=who, value=value) for who, value in zip(people, values, strict=True)]
    chance.shuffle(lines)
    text = "Here is what I wrote down after talking to the four of them yesterday. " + " ".join(lines)
    return Note(text, question.format(who=people[0]), values[0], tuple(values[1:]))


def make_form_task(chance: random.Random) -> FormTask:
    return FormTask(make_note(chance), chance.choice(FORMS))


def limit_prompt(note: Note, limit: int) -> str:
    return f"{note.text}\n\n{note.question} Answer in at most {limit} words."


def grade_limit(note: Note, answer: str, limit: int) -> RewardResult:
    """How well the limit was kept, if the answer is right at all."""
    right = mentions(answer, note.answer, note.distractors)
    kept = word_limit(answer, limit, zero_at=3 * limit)
    return gated(right, kept).with_parts({"right": right.value, "kept": kept.value})


_ASKS = {
    "tag": "Write the answer between <answer> and </answer>, and nothing else.",
    "json": 'Reply with a JSON object that has one key, "answer", and nothing else.',
    "bullets": "Reply with two lines that each begin with '- ': first the question, then the answer.",
    "sentence": "Reply with one line that begins with 'Answer: ' and ends with a full stop.",
}


def form_prompt(task: FormTask) -> str:
    return f"{task.note.text}\n\n{task.note.question}\n{_ASKS[task.form]}"


def form_gold(task: FormTask) -> str:
    answer = task.note.answer
    return {
        "tag": f"<answer>{answer}</answer>",
        "json": json.dumps({"answer": answer}),
        "bullets": f"- {task.note.question}\n- {answer}",
        "sentence": f"Answer: {answer}.",
    }[task.form]


def grade_form(task: FormTask, answer: str) -> RewardResult:
    """0.2 for the right answer in any short form, the rest for each part of the form that was kept.

    Form alone earns nothing: a policy that fills the form with nothing learns nothing about the task.
    """
    steps = _FORM_STEPS.get(task.form)
    if steps is None:
        raise GraderError(f"there is no form '{task.form}'; there are: {', '.join(FORMS)}")
    right = mentions(answer, task.note.answer, task.note.distractors)
    kept = [float(step(task, answer.strip())) for step in steps]
    form = sum(kept) / len(kept)
    short = word_limit(answer, 30, zero_at=40)
    value = round(short.value * (0.2 + 0.8 * form), 9)
    return gated(right, RewardResult(value, {"right": right.value, "form": form}, right.detail))


_Step = Callable[[FormTask, str], bool]


def _tag_content(answer: str) -> str:
    return answer.partition("<answer>")[2].partition("</answer>")[0]


def _json_value(answer: str) -> object:
    try:
        return read_json(answer)
    except ValueError:
        return None


def _is_json_answer(task: FormTask, answer: str) -> bool:
    value = _json_value(answer)
    return isinstance(value, dict) and list(value) == ["answer"] and _says(task, str(value["answer"]))


def _says(task: FormTask, text: str) -> bool:
    return exact_match(text, task.note.answer).success if text.strip() else False


_FORM_STEPS: dict[str, tuple[_Step, ...]] = {
    "tag": (
        lambda task, answer: "<answer>" in answer,
        lambda task, answer: answer.count("<answer>") == answer.count("</answer>") == 1,
        lambda task, answer: _says(task, _tag_content(answer)),
        lambda task, answer: answer.startswith("<answer>") and answer.endswith("</answer>"),
    ),
    "json": (
        lambda task, answer: "{" in answer and "}" in answer,
        lambda task, answer: isinstance(_json_value(answer), dict),
        _is_json_answer,
    ),
    "bullets": (
        lambda task, answer: answer.startswith("- "),
        lambda task, answer: len(answer.split("\n")) == 2,
        lambda task, answer: all(line.startswith("- ") for line in answer.split("\n")),
        lambda task, answer: _says(task, answer.split("\n")[-1].removeprefix("- ")),
    ),
    "sentence": (
        lambda task, answer: answer.startswith("Answer: "),
        lambda task, answer: "\n" not in answer,
        lambda task, answer: answer.endswith("."),
        lambda task, answer: _says(task, answer.removeprefix("Answer: ")),
    ),
}
