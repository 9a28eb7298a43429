"""The read-out of a reward model: how an adapter of a language model gives a score.

The conversation is followed by a question about its last answer, and the score is the difference of the
log-probabilities of two words as the reply: log p("good") − log p("bad"). That is a difference of two logits,
so any service with Tinker's API computes and trains it, without a head of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermes.core import JSONObject, Message, Role
from hermes.core.message import pair_results
from hermes.errors import ConfigError
from hermes.models.base import ChatRequest
from hermes.models.render.template import encode, render_content
from hermes.training.data.sft_examples import SftExample
from hermes.training.preference.examples import RenderedCompletion

if TYPE_CHECKING:
    from hermes.models.render.chat import ChatRenderer

QUESTION = "Was your last answer good or bad? Reply with one word."
GOOD, BAD = "good", "bad"


@dataclass(frozen=True, slots=True)
class ReadOut:
    question: str = QUESTION
    good: str = GOOD
    bad: str = BAD
    """Two words whose first tokens differ; what follows the first token does not matter."""


@dataclass(frozen=True, slots=True)
class ReadOutTokens:
    """The first token of each word, by the model's tokenizer."""

    good: int
    bad: int


def readout_tokens(readout: ReadOut, renderer: ChatRenderer) -> ReadOutTokens:
    """ConfigError if the two words begin with the same token."""
    tokenizer = renderer.tokenizer
    ids = [encode(tokenizer, render_content(tokenizer, word))[:1] for word in (readout.good, readout.bad)]
    if not ids[0] or not ids[1] or ids[0] == ids[1]:
        raise ConfigError(
            f"'{readout.good}' and '{readout.bad}' begin with the same token of {tokenizer.name_or_path}.",
            "Choose other words for the read-out.",
        )
    return ReadOutTokens(ids[0][0], ids[1][0])


def rating_prompt(
    messages: Sequence[Message], tools: Sequence[JSONObject], readout: ReadOut, renderer: ChatRenderer
) -> tuple[int, ...]:
    """The conversation with the question after it, up to where the one-word reply begins."""
    turns = (*pair_results(messages), Message(Role.USER, readout.question))
    rendered = renderer.render(ChatRequest(turns, tuple(tools)), {})
    return tuple(encode(renderer.tokenizer, rendered))


def readout_pair(
    prompt: Sequence[int], words: ReadOutTokens
) -> tuple[RenderedCompletion, RenderedCompletion]:
    """Two sequences, of which only the last token counts; they share everything before it."""
    mask = (*[False] * len(prompt), True)
    return (
        RenderedCompletion((SftExample((*prompt, words.good), mask),)),
        RenderedCompletion((SftExample((*prompt, words.bad), mask),)),
    )
