"""Requests in plain words, the functions on offer, and the calls that are right: made from the table.

Functions are held out, not requests: a function is met in training or in evaluation, never in both, neither
as the one to call nor as one that merely stands beside it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from hermes.core import JSONObject
from hermes.envs.tasks.functions.table import DOMAINS, KINDS, VERBS, ParameterKind
from hermes.envs.tasks.split import Split, split_of

CATEGORIES = ("simple", "multiple", "parallel", "parallel_multiple", "irrelevant")
_FORMS = ("{}.", "Please {}.", "Could you {}?", "I need you to {}.", "I would like you to {}, thank you.")
_OPTIONAL_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    domain: str
    verb: str
    noun: str
    kinds: tuple[str, ...]
    """Required parameters, by kind; a parameter has the name of its kind."""

    @property
    def schema(self) -> JSONObject:
        """As it is offered to a model: name, description, JSON schema of the parameters."""
        properties = {kind: _property(KINDS[kind]) for kind in self.kinds}
        optional = VERBS[self.verb].optional
        if optional is not None:
            properties[optional.kind] = {**_property(KINDS[optional.kind]), "default": optional.default}
        return {
            "name": self.name,
            "description": f"{VERBS[self.verb].phrase.capitalize()} {_article(self.noun)}.",
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(self.kinds),
                "additionalProperties": False,
            },
        }


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A call that is wanted. Optional parameters stand here only where the request names them."""

    name: str
    arguments: JSONObject


@dataclass(frozen=True, slots=True)
class FunctionRequest:
    category: str
    text: str
    offered: tuple[Function, ...]
    wanted: tuple[ExpectedCall, ...]
    """Empty where none of the functions fits."""

    @property
    def key(self) -> str:
        calls = sorted(json.dumps([call.name, call.arguments], sort_keys=True) for call in self.wanted)
        return f"{self.category} {calls or self.text}"


@cache
def all_functions() -> tuple[Function, ...]:
    return tuple(_parse(DOMAINS))


@cache
def functions_of(split: Split) -> tuple[Function, ...]:
    return tuple(function for function in all_functions() if split_of(function.name) is split)


def make_request(
    chance: random.Random, split: Split, categories: Sequence[str] = CATEGORIES
) -> FunctionRequest:
    pool = functions_of(split)
    category = chance.choice(list(categories))
    asked = [chance.choice(pool)]
    if category == "parallel":
        asked *= chance.randint(2, 3)
    elif category == "parallel_multiple":
        asked += _unfit(chance, pool, asked, 1)
    clauses, wanted = zip(*(_ask(chance, function) for function in asked), strict=True)
    offered = list(dict.fromkeys(asked))
    if category == "irrelevant":
        offered, wanted = _unfit(chance, pool, asked, chance.randint(1, 3)), ()
    elif category not in ("simple", "parallel"):
        rest = [function for function in pool if function not in offered]
        offered += chance.sample(rest, chance.randint(1, 3))
    chance.shuffle(offered)
    return FunctionRequest(category, _sentence(chance, clauses), tuple(offered), wanted)


def _unfit(
    chance: random.Random, pool: Sequence[Function], asked: Sequence[Function], count: int
) -> list[Function]:
    """Functions of other domains, which cannot do what was asked."""
    taken = {function.domain for function in asked}
    return chance.sample([function for function in pool if function.domain not in taken], count)


def _ask(chance: random.Random, function: Function) -> tuple[str, ExpectedCall]:
    """A clause that asks for the function, and the call it asks for."""
    arguments = {kind: KINDS[kind].values(chance) for kind in function.kinds}
    optional = VERBS[function.verb].optional
    if optional is not None and chance.random() < _OPTIONAL_SHARE:
        value = KINDS[optional.kind].values(chance)
        if value != optional.default:
            arguments[optional.kind] = value
    said = " ".join(_phrase(KINDS[kind], value) for kind, value in arguments.items())
    return f"{VERBS[function.verb].phrase} {_article(function.noun)} {said}", ExpectedCall(
        function.name, arguments
    )


def _phrase(kind: ParameterKind, value: object) -> str:
    shown = " and ".join(value) if isinstance(value, list) else str(value)
    return kind.phrase.format(shown)


def _sentence(chance: random.Random, clauses: Sequence[str]) -> str:
    sentence = chance.choice(_FORMS).format("; also ".join(clauses))
    return sentence[0].upper() + sentence[1:]


def _article(noun: str) -> str:
    plain = noun.replace("_", " ")
    return f"{'an' if plain[0] in 'aeio' else 'a'} {plain}"


def _property(kind: ParameterKind) -> JSONObject:
    declared: JSONObject = {"type": kind.type, "description": kind.description}
    if kind.type == "array":
        declared["items"] = {"type": "string"}
    if kind.options:
        declared["enum"] = list(kind.options)
    return declared


def _parse(table: str) -> list[Function]:
    found: list[Function] = []
    domain, verbs = "", ""
    for line in table.strip().splitlines():
        if not line.startswith(" "):
            domain, _, verbs = line.partition(": ")
            continue
        for entry in line.strip().rstrip(";").split("; "):
            noun, _, kinds = entry.partition(": ")
            found += [
                Function(f"{verb}_{noun}", domain, verb, noun, tuple(kinds.split())) for verb in verbs.split()
            ]
    return found
