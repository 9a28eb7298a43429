"""A note with four facts of the same kind, a question about one of them, and the form of the response.

The answer is in the note, so that a small model can find it. The note also contains three distractors, and a
response that names one of them, or anything else of the kind, is wrong. The note is long: repeating it
exceeds every word limit.
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
    """The facts that the note says of the other people, and then everything else of the kind."""

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


def make_note(rng: random.Random) -> Note:
    sentence, question, pool = rng.choice(_FACTS)
    people, values = rng.sample(PEOPLE, 4), rng.sample(list(pool), 4)
    lines = [sentence.format(who=person, value=value) for person, value in zip(people, values, strict=True)]
    rng.shuffle(lines)
    text = "Here is what I wrote down after talking to the four of them yesterday. " + " ".join(lines)
    unused = [value for value in pool if value not in values]
    return Note(text, question.format(who=people[0]), values[0], (*values[1:], *unused))


def make_form_task(rng: random.Random) -> FormTask:
    return FormTask(make_note(rng), rng.choice(FORMS))


def limit_prompt(note: Note, limit: int) -> str:
    return f"{note.text}\n\n{note.question} Answer in at most {limit} words."


def grade_limit(note: Note, response: str, limit: int) -> RewardResult:
    """How close the response is to the word limit; 0 if it does not give the right answer."""
    right = mentions(response, note.answer, note.distractors)
    brevity = word_limit(response, limit, zero_at=3 * limit)
    return gated(right, brevity).with_parts({"right": right.value, "kept": brevity.value})


_FORM_INSTRUCTIONS = {
    "tag": "Write the answer between <answer> and </answer>, and nothing else.",
    "json": 'Reply with a JSON object that has one key, "answer", and nothing else.',
    "bullets": "Reply with two lines that each begin with '- ': first the question, then the answer.",
    "sentence": "Reply with one line that begins with 'Answer: ' and ends with a full stop.",
}


def form_prompt(task: FormTask) -> str:
    return f"{task.note.text}\n\n{task.note.question}\n{_FORM_INSTRUCTIONS[task.form]}"


def form_gold(task: FormTask) -> str:
    fact = task.note.answer
    return {
        "tag": f"<answer>{fact}</answer>",
        "json": json.dumps({"answer": fact}),
        "bullets": f"- {task.note.question}\n- {fact}",
        "sentence": f"Answer: {fact}.",
    }[task.form]


def grade_form(task: FormTask, response: str) -> RewardResult:
    """0.2 for the right answer in any short form, the rest in equal parts for each rule of the form.

    Form without the right answer earns nothing.
    """
    rules = _FORM_RULES.get(task.form)
    if rules is None:
        raise GraderError(f"there is no form '{task.form}'; the forms are {', '.join(FORMS)}")
    right = mentions(response, task.note.answer, task.note.distractors)
    form = sum(float(rule(task, response.strip())) for rule in rules) / len(rules)
    short = word_limit(response, 30, zero_at=40)
    value = round(short.value * (0.2 + 0.8 * form), 9)
    return gated(right, RewardResult(value, {"right": right.value, "form": form}, right.detail))


_FormRule = Callable[[FormTask, str], bool]


def _tag_content(response: str) -> str:
    return response.partition("<answer>")[2].partition("</answer>")[0]


def _json_value(response: str) -> object:
    try:
        return read_json(response)
    except ValueError:
        return None


def _is_json_answer(task: FormTask, response: str) -> bool:
    value = _json_value(response)
    return isinstance(value, dict) and list(value) == ["answer"] and _is_answer(task, str(value["answer"]))


def _is_answer(task: FormTask, text: str) -> bool:
    return exact_match(text, task.note.answer).success if text.strip() else False


_FORM_RULES: dict[str, tuple[_FormRule, ...]] = {
    "tag": (
        lambda task, response: "<answer>" in response,
        lambda task, response: response.count("<answer>") == response.count("</answer>") == 1,
        lambda task, response: _is_answer(task, _tag_content(response)),
        lambda task, response: response.startswith("<answer>") and response.endswith("</answer>"),
    ),
    "json": (
        lambda task, response: "{" in response and "}" in response,
        lambda task, response: isinstance(_json_value(response), dict),
        _is_json_answer,
    ),
    "bullets": (
        lambda task, response: response.startswith("- "),
        lambda task, response: len(response.split("\n")) == 2,
        lambda task, response: all(line.startswith("- ") for line in response.split("\n")),
        lambda task, response: _is_answer(task, response.split("\n")[-1].removeprefix("- ")),
    ),
    "sentence": (
        lambda task, response: response.startswith("Answer: "),
        lambda task, response: "\n" not in response,
        lambda task, response: response.endswith("."),
        lambda task, response: _is_answer(task, response.removeprefix("Answer: ")),
    ),
}
