"""gsm8k: grade school word problems, with the answer after `####`.

Teaches reasoning in text. Graded by the value of the answer (math-verify). The problems are those of the data
set on the hub, whose test part is held out; where it cannot be loaded, generated problems of the same form
are used, with a warning in the log. For a model of 135 million parameters this measures rather than teaches.

GSM8K's problems, from the Hugging Face hub or from a folder with `train.jsonl` and `test.jsonl`.

The hub is probed first with a short timeout, because its own client retries for half a minute. With
HF_HUB_OFFLINE set, the local download cache is used.

Generated problems have two to four steps. Each is a chain of sentences that change one quantity, with a
solution in GSM8K's form that ends with `#### answer`. They are easier than GSM8K: they exercise the same code
and do not replace the benchmark.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field

from hermes.core import Message
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import GeneratedEnvConfig
from hermes.envs.builtin.solvable import SolvableEnv
from hermes.envs.dataset import load_tasks
from hermes.envs.rewards.mathematics import MathGrader
from hermes.envs.rewards.result import RewardResult
from hermes.envs.tasks.split import Split, draw
from hermes.envs.tasks.vocabulary import PEOPLE, THINGS
from hermes.errors import HermesError, MissingDependencyError, UsageError

logger = logging.getLogger(__name__)


class Gsm8kConfig(GeneratedEnvConfig):
    max_agent_turns: int = Field(default=1, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=512, description="Longest answer, in tokens.")
    dataset_name: str = Field(
        default="openai/gsm8k",
        description="The data set on the hub, or a folder with train.jsonl and test.jsonl; fields question "
        "and answer.",
    )
    source: Literal["auto", "hub", "generated"] = Field(
        default="auto",
        description="hub: the data set or an error. generated: made here. auto: the data set if it can be "
        "loaded, else generated.",
    )


class Gsm8kEnv(SolvableEnv):
    """Grade school word problems; 1 if the answer has the right value."""

    name = "gsm8k"
    env_config_cls: ClassVar[Any] = Gsm8kConfig
    config: Gsm8kConfig

    async def setup(self) -> None:
        self._math = MathGrader()
        self._hub: dict[Split, list[WordProblem]] = {}
        if self.config.source != "generated":
            await asyncio.to_thread(self._load_hub)
        await super().setup()

    def _load_hub(self) -> None:
        try:
            held_out = load_problems(self.config.dataset_name, "test")
            held_out_questions = {problem.question for problem in held_out}
            train = load_problems(self.config.dataset_name, self.config.dataset_split)
        except HermesError as error:
            if self.config.source == "hub":
                raise
            logger.warning("gsm8k: generated problems instead of the data set: %s", error.message)
            return
        self._hub = {
            Split.TRAIN: [problem for problem in train if problem.question not in held_out_questions],
            Split.EVAL: held_out,
        }

    def generate(self, split: Split) -> Iterator[WordProblem]:
        if not self._hub:
            return draw(word_problem, split, self.seed_of(split))
        problems = list(self._hub[split])
        random.Random(f"{split} {self.seed_of(split)}").shuffle(problems)
        return iter(problems)

    def format_prompt(self, item: WordProblem) -> str:
        return f"{item.question}\n\nThink step by step. End with #### and the number."

    async def grade(self, item: WordProblem, result: AgentResult, ctx: ToolContext) -> RewardResult:
        return await asyncio.to_thread(self._math.grade, result.final_response, item.answer)

    def gold(self, item: WordProblem) -> Sequence[Message]:
        return [Message.assistant(item.solution)]

    async def close(self) -> None:
        self._math.close()
        await super().close()


if __name__ == "__main__":
    Gsm8kEnv.cli()


_CONFIG = "main"
_PROBE_TIMEOUT_S = 5.0
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def load_problems(name: str, part: str) -> list[WordProblem]:
    """All problems of a part; UsageError if they cannot be loaded."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _read(name, load_tasks(str(folder / f"{part}.jsonl"), part, "question"))
    return _read(name, _from_hub(name, part))


def _from_hub(name: str, part: str) -> list[dict[str, Any]]:
    try:
        from datasets import load_dataset  # type: ignore[import-untyped]
        from huggingface_hub.constants import ENDPOINT
    except ModuleNotFoundError as error:
        raise MissingDependencyError("datasets", "envs", f"Loading the data set {name}") from error
    hint = "Check the name and the network, give a folder, or set --env.source generated."
    try:
        _probe(ENDPOINT)
        return [dict(row) for row in load_dataset(name, _CONFIG, split=part)]
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"the data set {name} ({part}) cannot be loaded: {error}", hint) from error


def _probe(endpoint: str) -> None:
    """OSError if the endpoint is unreachable. Skipped offline and behind a proxy, where it proves nothing."""
    if os.environ.get("HF_HUB_OFFLINE") or any(os.environ.get(name) for name in _PROXIES):
        return
    address = urlsplit(endpoint)
    port = address.port or (443 if address.scheme == "https" else 80)
    socket.create_connection((address.hostname or "", port), _PROBE_TIMEOUT_S).close()


def _read(name: str, rows: Sequence[dict[str, Any]]) -> list[WordProblem]:
    problems = []
    for index, row in enumerate(rows, 1):
        solution = str(row.get("answer", ""))
        number = solution.rpartition("####")[2].strip().replace(",", "")
        if not number or "####" not in solution:
            raise UsageError(
                f"problem {index} of {name} has no answer after '####'.",
                "The field 'answer' must end with '#### NUMBER'.",
            )
        problems.append(WordProblem(str(row["question"]), solution, number))
    return problems


_STEPS = (
    ("{name} buys {n} more.", "+"),
    ("{name} gets {n} as a present.", "+"),
    ("{name} gives {n} to a friend.", "-"),
    ("{name} loses {n}.", "-"),
    ("A neighbour brings enough to make it {n} times as many.", "*"),
    ("{name} shares them equally among {n} boxes and keeps one box.", "/"),
)


@dataclass(frozen=True, slots=True)
class WordProblem:
    question: str
    solution: str
    """Worked out, ending with `#### answer`."""
    answer: str

    @property
    def key(self) -> str:
        return self.question


def word_problem(rng: random.Random) -> WordProblem:
    name, noun = rng.choice(PEOPLE), rng.choice(THINGS)
    count = rng.randint(6, 60)
    story, work = [f"{name} has {count} {noun}s."], []
    used = {count}
    for _ in range(rng.randint(2, 4)):
        sentence, symbol = rng.choice(_STEPS)
        number = _operand(rng, count, symbol)
        if number is None:
            continue
        result = {"+": count + number, "-": count - number, "*": count * number, "/": count // number}[symbol]
        story.append(sentence.format(name=name.split()[0], n=number))
        work.append(f"{count} {symbol} {number} = {result}.")
        used.add(number)
        count = result
    if count in used or not work:
        return word_problem(rng)
    question = f"{' '.join(story)} How many {noun}s does {name.split()[0]} have now?"
    return WordProblem(question, f"{' '.join(work)}\n#### {count}", str(count))


def _operand(rng: random.Random, count: int, symbol: str) -> int | None:
    """A number that keeps the story plausible; None if there is none."""
    if symbol == "+":
        return rng.randint(2, 40)
    if symbol == "-":
        return rng.randint(2, count - 2) if count > 4 else None
    if symbol == "*":
        return rng.randint(2, 4) if count < 500 else None
    divisors = [number for number in range(2, 10) if count % number == 0 and count > number]
    return rng.choice(divisors) if divisors else None
