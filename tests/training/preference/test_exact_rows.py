"""From any store to the tokens of DPO, KTO and reward-model rows: exactly what was rated, after its prompt.

`tests/data/test_rows.py` proves that pairs and rated answers hold the right messages; here every trained
token is compared with those messages.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from hermes.core import JSONObject, Message, Role
from hermes.core.message import pair_results
from hermes.data.export.select import EVERYTHING
from hermes.envs.tokenise import load_tokenizer
from hermes.models.base import ChatRequest
from hermes.models.render.chat import ChatRenderer
from hermes.models.render.prompting import assistant_text
from hermes.models.render.template import encode
from hermes.store import Reader, Writer
from hermes.training.preference.examples import (
    RenderedCompletion,
    RowLimits,
    consistent_pairs,
    pair_examples,
    unpaired_examples,
)
from hermes.training.preference.readout import ReadOut
from hermes.training.preference.reward import reward_pairs, reward_points
from hermes.training.preference.sources import from_store
from tests.data.rated_stores import PENDING, stores

READOUT = ReadOut()
ORIGINS = ("choice", "rating", "retry")


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer.of(load_tokenizer("hermes/smollm2"), "hermes", 2048)


def check_completion(
    rendered: RenderedCompletion,
    prompt: Sequence[Message],
    completion: Sequence[Message],
    tools: Sequence[JSONObject],
    renderer: ChatRenderer,
) -> None:
    """The trained tokens spell the assistant's messages; what comes first is the prompt, token by token."""
    (context,) = rendered.contexts  # this model's template does not rewrite history
    trained = [token for token, on in zip(context.tokens, context.loss_mask, strict=True) if on]
    written = [message for message in completion if message.role is Role.ASSISTANT]
    end = renderer.tokenizer.eos_token
    assert renderer.decode(trained) == "".join(
        f"{assistant_text(message, renderer.parser)}{end}" for message in written
    )
    expected = encode(
        renderer.tokenizer,
        renderer.render(ChatRequest(tuple(pair_results(prompt)), tuple(tools)), {}),
    )
    assert list(context.tokens[: rendered.prompt_tokens]) == list(expected)


def rating_text(messages: Sequence[Message], tools: Sequence[JSONObject], renderer: ChatRenderer) -> str:
    turns = (*pair_results(messages), Message.user(READOUT.question))
    return renderer.render(ChatRequest(turns, tuple(tools)), {}).text


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_token_of_a_row_is_of_the_rated_answer_or_its_prompt(
    renderer: ChatRenderer, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "hermes.db"
        with Writer(db) as writer:
            data.draw(stores(writer))
            while PENDING:
                PENDING.pop().result()
        with Reader(db) as reader:
            verdicts = from_store(reader, EVERYTHING, ORIGINS, 0.0)
    limits = RowLimits(1 << 20, 0.0, 1)
    pairs = consistent_pairs(verdicts.pairs, Counter())
    if pairs:
        event("pairs")
        rows = pair_examples(pairs, renderer, Counter(), limits).train
        scored = reward_pairs(pairs, READOUT, renderer, Counter(), limits).train
        assert len(rows) == len(scored) == len(pairs)
        for pair, row, reward_row in zip(pairs, rows, scored, strict=True):
            for completion, rendered, tokens in (
                (pair.chosen, row.chosen, reward_row.chosen),
                (pair.rejected, row.rejected, reward_row.rejected),
            ):
                check_completion(rendered, pair.prompt, completion, pair.tools, renderer)
                text = rating_text((*pair.prompt, *completion), pair.tools, renderer)
                assert renderer.decode(tokens) == text
    labelled = [rated for rated in verdicts.rated if rated.desirable is not None]
    if {rated.desirable for rated in labelled} == {True, False}:
        event("good and bad answers")
        answers = unpaired_examples(labelled, renderer, Counter(), limits).train
        for rated, answer in zip(labelled, answers, strict=True):
            assert answer.desirable == rated.desirable
            check_completion(answer.completion, rated.prompt, rated.completion, rated.tools, renderer)
    if verdicts.rated:
        event("ratings")
        points = reward_points(verdicts.rated, READOUT, renderer, Counter(), limits).train
        for rated, point in zip(verdicts.rated, points, strict=True):
            assert point.target == (rated.score - 1) / 4
            text = rating_text((*rated.prompt, *rated.completion), rated.tools, renderer)
            assert renderer.decode(point.prompt) == text
