"""A trained reward model: its file, and the scorer that computes its scores at a Tinker service.

The model is one adapter or an ensemble of adapters that were trained with different seeds. The score is their
mean; their standard deviation says how sure the model is.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.core import JSONObject, Message, Role, parse_object
from hermes.disk.files import atomic_write, read_text
from hermes.errors import HermesError, UsageError
from hermes.training.preference.readout import ReadOut, rating_prompt, readout_tokens
from hermes.training.service.client import ServiceConnection

if TYPE_CHECKING:
    from hermes.models.render.chat import ChatRenderer

NAME = "reward_model.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class RewardModelSpec:
    """The content of `reward_model.json`."""

    base_model: str
    members: tuple[str, ...]
    """tinker:// paths of sampler weights, one for each seed."""
    readout: ReadOut
    max_tokens: int = 2048
    parser: str = "hermes"
    url: str = ""
    """The service that has the weights."""
    held_out: JSONObject | None = None
    """The report on held-out pairs; None: there were none."""


@dataclass(frozen=True, slots=True)
class AnswerScore:
    score: float
    """The mean over the ensemble: a log-odds, above 0 for a good answer."""
    spread: float
    """The standard deviation over the ensemble; 0 for one model."""


def write_spec(folder: Path, spec: RewardModelSpec) -> Path:
    path = folder / NAME
    atomic_write(path, json.dumps({"format": _FORMAT, **asdict(spec)}, indent=1) + "\n")
    return path


def read_spec(name: str, home: Path) -> RewardModelSpec:
    """By the folder, the file, or the name of the run that trained it."""
    folder = Path(name).expanduser()
    for path in (folder, folder / NAME, home / "runs" / name / NAME):
        text = read_text(path) if path.name == NAME else None
        if text is not None:
            return _decode(text, path)
    raise UsageError(
        f"there is no reward model called '{name}'", "train one with: hermes train reward --name NAME"
    )


def _decode(text: str, path: Path) -> RewardModelSpec:
    try:
        data = parse_object(text)
        if data.pop("format") != _FORMAT:
            raise HermesError(f"{path} was written by another version of Hermes", "train the model again")
        data |= {"members": tuple(data["members"]), "readout": ReadOut(**data["readout"])}
        return RewardModelSpec(**data)
    except (ValueError, KeyError, TypeError) as error:
        raise HermesError(f"{path} is damaged: {error}", "train the model again") from error


class RewardScorer:
    """Scores conversations. Thread-safe: requests of several threads share the service."""

    def __init__(self, spec: RewardModelSpec, connection: ServiceConnection, renderer: ChatRenderer) -> None:
        import tinker

        self.spec = replace(spec, url=connection.url)
        self._renderer = renderer
        self._words = readout_tokens(spec.readout, renderer)
        try:
            service = tinker.ServiceClient(base_url=connection.base_url, api_key=connection.key)
            self._samplers: list[Any] = [
                service.create_sampling_client(model_path=path) for path in spec.members
            ]
        except tinker.TinkerError as error:
            raise HermesError(
                f"{connection.url} does not have the reward model: {error}",
                "start the engine that trained it, with the same --state-dir",
            ) from error

    def score(self, messages: Sequence[Message], tools: Sequence[JSONObject] = ()) -> AnswerScore:
        """Scores the conversation's last answer."""
        return self.score_prompts([self.prompt(messages, tools)])[0]

    def prompt(self, messages: Sequence[Message], tools: Sequence[JSONObject] = ()) -> tuple[int, ...]:
        """The rating prompt. UsageError if it is longer than the model's window, or nobody answered."""
        if not messages or messages[-1].role is not Role.ASSISTANT:
            raise UsageError("the conversation does not end with an answer", "send it with its answer")
        prompt = rating_prompt(messages, tools, self.spec.readout, self._renderer)
        if len(prompt) >= self.spec.max_tokens:
            raise UsageError(
                f"the conversation has {len(prompt)} tokens; the reward model reads {self.spec.max_tokens}",
                "shorten it, or train the reward model with a larger --max-tokens",
            )
        return prompt

    def score_prompts(self, prompts: Sequence[Sequence[int]]) -> list[AnswerScore]:
        """Rating prompts, as `rating_prompt` makes them; all at once."""
        import tinker

        try:
            futures = [
                [
                    sampler.compute_logprobs(tinker.ModelInput.from_ints([*prompt, word]))
                    for word in (self._words.good, self._words.bad)
                ]
                for prompt in prompts
                for sampler in self._samplers
            ]
            scores = [float(good.result()[-1]) - float(bad.result()[-1]) for good, bad in futures]
        except tinker.TinkerError as error:
            raise HermesError(f"the reward model at {self.spec.url} failed: {error}") from error
        size = len(self._samplers)
        groups = [scores[start : start + size] for start in range(0, len(scores), size)]
        return [AnswerScore(statistics.fmean(group), statistics.pstdev(group)) for group in groups]
