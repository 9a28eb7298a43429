"""Requests in natural language with the functions on offer and the expected calls, generated from the table.

Functions are held out, not requests: a function occurs in training or in evaluation, never in both, neither
as the function to call nor as one that is merely on offer.
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
        """The tool definition: name, description, JSON schema of the parameters."""
        properties = {kind: _property(KINDS[kind]) for kind in self.kinds}
        optional = VERBS[self.verb].optional
        if optional is not None:
            properties[optional.kind] = {**_property(KINDS[optional.kind]), "default": optional.default}
        return {
            "name": self.name,
            "description": f"{VERBS[self.verb].phrase.capitalize()} {_with_article(self.noun)}.",
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(self.kinds),
                "additionalProperties": False,
            },
        }


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A call that the request asks for, with the optional arguments that the request names."""

    name: str
    arguments: JSONObject


@dataclass(frozen=True, slots=True)
class FunctionRequest:
    category: str
    text: str
    offered: tuple[Function, ...]
    expected_calls: tuple[ExpectedCall, ...]
    """Empty where none of the functions on offer fits."""

    @property
    def key(self) -> str:
        calls = sorted(
            json.dumps([call.name, call.arguments], sort_keys=True) for call in self.expected_calls
        )
        return f"{self.category} {calls or self.text}"


@cache
def all_functions() -> tuple[Function, ...]:
    return tuple(_parse(DOMAINS))


@cache
def functions_of(split: Split) -> tuple[Function, ...]:
    return tuple(function for function in all_functions() if split_of(function.name) is split)


def make_request(rng: random.Random, split: Split, categories: Sequence[str] = CATEGORIES) -> FunctionRequest:
    pool = functions_of(split)
    category = rng.choice(list(categories))
    requested = [rng.choice(pool)]
    if category == "parallel":
        requested *= rng.randint(2, 3)
    elif category == "parallel_multiple":
        requested += _from_other_domains(rng, pool, requested, 1)
    clauses, calls = zip(*(_clause(rng, function) for function in requested), strict=True)
    offered = list(dict.fromkeys(requested))
    if category == "irrelevant":
        offered, calls = _from_other_domains(rng, pool, requested, rng.randint(1, 3)), ()
    elif category not in ("simple", "parallel"):
        rest = [function for function in pool if function not in offered]
        offered += rng.sample(rest, rng.randint(1, 3))
    rng.shuffle(offered)
    return FunctionRequest(category, _sentence(rng, clauses), tuple(offered), calls)


def _from_other_domains(
    rng: random.Random, pool: Sequence[Function], requested: Sequence[Function], count: int
) -> list[Function]:
    """Functions that cannot do what is requested."""
    domains = {function.domain for function in requested}
    return rng.sample([function for function in pool if function.domain not in domains], count)


def _clause(rng: random.Random, function: Function) -> tuple[str, ExpectedCall]:
    """A clause that asks for the function, and the call it expects."""
    arguments = {kind: KINDS[kind].values(rng) for kind in function.kinds}
    optional = VERBS[function.verb].optional
    if optional is not None and rng.random() < _OPTIONAL_SHARE:
        value = KINDS[optional.kind].values(rng)
        if value != optional.default:
            arguments[optional.kind] = value
    details = " ".join(_phrase(KINDS[kind], value) for kind, value in arguments.items())
    clause = f"{VERBS[function.verb].phrase} {_with_article(function.noun)} {details}"
    return clause, ExpectedCall(function.name, arguments)


def _phrase(kind: ParameterKind, value: object) -> str:
    text = " and ".join(value) if isinstance(value, list) else str(value)
    return kind.phrase.format(text)


def _sentence(rng: random.Random, clauses: Sequence[str]) -> str:
    sentence = rng.choice(_FORMS).format("; also ".join(clauses))
    return sentence[0].upper() + sentence[1:]


def _with_article(noun: str) -> str:
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
    functions: list[Function] = []
    domain, verbs = "", ""
    for line in table.strip().splitlines():
        if not line.startswith(" "):
            domain, _, verbs = line.partition(": ")
            continue
        for entry in line.strip().rstrip(";").split("; "):
            noun, _, kinds = entry.partition(": ")
            functions += [
                Function(f"{verb}_{noun}", domain, verb, noun, tuple(kinds.split())) for verb in verbs.split()
            ]
    return functions
