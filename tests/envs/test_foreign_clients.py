"""Whatever a client does to a history, every sampled token is trained once, in the context of its sampling.

Each rollout draws a client that re-serialises, repairs, trims, drops thinking, edits, forks, retries,
compacts and calls sub-agents, and is compared with what the sampler saw. The seed is printed on failure.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hermes.core import Message, ModelCall, Role
from hermes.core.history import Echo
from hermes.core.sequence import MASKED
from hermes.envs.agent.sequences import build_sequences
from hermes.models.base import ChatRequest
from hermes.models.render.chat import ChatRenderer
from hermes.models.tokens.chat import TokenChat
from tests.envs.templates import FAMILIES, bundled_tokenizer, dressed
from tests.envs.token_cases import LONG, TOOLS, encode_plain
from tests.envs.token_source import Answer, ScriptedSource, said

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUICK, NIGHTLY = 150, 10_000
FEWER_TOOLS = TOOLS[:1] if len(TOOLS) > 1 else ({**TOOLS[0], "name": "other"},)
ARGUMENTS = ('{"a": 1, "b": [true, 1.0]}', '{"b":"ż ☕","a":{}}', '{"a": ', "not JSON", "{}")


@dataclass
class Client:
    """One random program, and the record of what its sampler was shown and said."""

    draw: random.Random
    tokenizer: PreTrainedTokenizerBase
    end: str
    edits: int = 0
    calls: list[ModelCall] = field(default_factory=list)
    said: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def answer(self, ids: list[int], params: dict[str, Any]) -> Answer:
        text = self.draw.choice(["", "<think>\nhm\n</think>\n\n", " Let me see. "])
        for _ in range(self.draw.choice([0, 1, 1, 2])):
            arguments = self.draw.choice(ARGUMENTS)
            text += f'<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call>\n'
        text += f"word{self.draw.randrange(1000)} "
        ends = [self.tokenizer.convert_tokens_to_ids(self.end)] if self.draw.random() < 0.9 else []
        sampled = [*encode_plain(self.tokenizer, text, self.draw.randint(1, 9)), *ends]
        self.said.append((ids, sampled))
        return said(sampled, "stop" if ends else "length")

    def sent_back(self, message: Message) -> Message:
        """The answer as this client keeps it."""
        calls = []
        for call in message.tool_calls:
            arguments, kind = call.arguments, self.draw.randrange(6)
            try:
                parsed = json.loads(arguments)
            except ValueError:
                arguments = json.dumps({"raw": arguments}) if kind < 4 else arguments
            else:
                if kind == 0:
                    arguments = json.dumps(dict(reversed(parsed.items())), indent=1)
                elif kind == 1:
                    arguments = json.dumps(parsed, separators=(",", ":"), ensure_ascii=False)
                elif kind == 2 and self.draw.random() < 0.3:
                    arguments, self.edits = json.dumps({**parsed, "edited": True}), self.edits + 1
            calls.append(replace(call, arguments=arguments, error=None))
        text = message.content.strip() if self.draw.random() < 0.5 else message.content
        reasoning = None if self.draw.random() < 0.5 else message.reasoning
        return Message.assistant(text, reasoning=reasoning, tool_calls=tuple(calls))

    async def play(self, chat: TokenChat) -> None:
        histories: list[tuple[tuple[Message, ...], Any]] = [
            ((Message.system("S"), Message.user("Do it.")), TOOLS)
        ]
        for _ in range(self.draw.randint(1, 8)):
            index = self.draw.randrange(len(histories))
            history, tools = histories[index]
            reply = await chat.complete(ChatRequest(history, tools))
            self.calls.append(reply.call)
            histories[index] = (self._grown(history, reply.message), tools)
            self._vary(histories, index, history, tools)

    def _grown(self, history: tuple[Message, ...], answer: Message) -> tuple[Message, ...]:
        if not answer.tool_calls and self.draw.random() < 0.15:
            return (*history, Message.user("Call a tool."))  # the answer is dropped
        results = [Message.tool(call, f"result {self.draw.randrange(9)}") for call in answer.tool_calls]
        told = results or [Message.user(self.draw.choice(["Go on.", "And <|im_end|> now?"]))]
        return (*history, self.sent_back(answer), *told)

    def _vary(self, histories: list[Any], index: int, before: tuple[Message, ...], tools: Any) -> None:
        history = histories[index][0]
        match self.draw.randrange(9):
            case 0:  # a retry: the same request again
                histories.append((before, tools))
            case 1:  # a fork, and parallel twins
                histories += [(history, tools), (history, tools)]
            case 2:  # compaction: a new beginning, with the tail kept
                tail = next((at for at in range(len(history) - 1, 0, -1) if history[at].tool_calls), None)
                kept = history[tail:] if tail else ()
                histories[index] = ((Message.system("S"), Message.user("So far: …"), *kept), tools)
            case 3:  # a sub-agent, with fewer tools
                histories.append(((Message.user("Part of it."),), FEWER_TOOLS))
            case 4:  # a reminder in an earlier message
                changed = replace(history[1], content=history[1].content + " (remember)")
                histories[index] = ((history[0], changed, *history[2:]), tools)
            case 5:  # words that no model said
                foreign = Message.assistant("No response requested.")
                histories[index] = ((*history, foreign, Message.user("Well?")), tools)


def check(client: Client, chat: TokenChat) -> None:
    """Against the sampler's own record."""
    assert [list(call.tokens.prompt_ids) for call in client.calls if call.tokens] == [
        ids for ids, _ in client.said
    ]
    exactness = build_sequences(client.calls)
    assert exactness.trainable
    trained: Counter[int] = Counter()
    for sequence in exactness.sequences:
        trained.update(sequence.calls)
        masked = [mask for mask in sequence.masks if mask != MASKED]
        assert masked == [token for index in sequence.calls for token in client.said[index][1]]
        for index in sequence.calls:
            ids, sampled = client.said[index]
            whole = (*ids, *sampled)
            assert sequence.tokens[: len(whole)] == whole, "the context is the one it was sampled in"
    assert trained == Counter(range(len(client.calls))), "each call once"
    assert chat.echoes.counts[Echo.EDITED] <= client.edits


def play_one(seed: int, tokenizer: PreTrainedTokenizerBase, end: str) -> tuple[Client, TokenChat]:
    client = Client(random.Random(seed), tokenizer, end)
    source = ScriptedSource(client.answer)
    return client, TokenChat(source, ChatRenderer.of(tokenizer, "hermes", LONG))


@pytest.mark.parametrize("rollouts", [QUICK, pytest.param(NIGHTLY, marks=pytest.mark.slow)])
async def test_no_client_makes_a_token_trained_twice_or_elsewhere(bundled_home: Path, rollouts: int) -> None:
    first = random.SystemRandom().randrange(1 << 32)
    totals: Counter[Echo] = Counter()
    tokenizers = [dressed(bundled_tokenizer(bundled_home), family) for family in FAMILIES]
    for number in range(rollouts):
        family = FAMILIES[number % len(FAMILIES)]
        client, chat = play_one(first + number, tokenizers[number % len(FAMILIES)], family.end)
        try:
            await client.play(chat)
            check(client, chat)
        except AssertionError as error:
            raise AssertionError(f"seed {first + number}, {family.name}: {error}") from error
        totals += chat.echoes.counts
    assert all(totals[echo] for echo in Echo), f"every form of an answer has come back: {totals}"


def chatml(home: Path) -> tuple[PreTrainedTokenizerBase, str]:
    family = FAMILIES[0]
    return dressed(bundled_tokenizer(home), family), family.end


def scripted(
    tokenizer: PreTrainedTokenizerBase, end: str, *texts: str
) -> tuple[TokenChat, list[dict[str, Any]]]:
    queue, asked = list(texts), []

    def answer(ids: list[int], params: dict[str, Any]) -> Answer:
        asked.append(params)
        return said([*encode_plain(tokenizer, queue.pop(0), 9), tokenizer.convert_tokens_to_ids(end)])

    return TokenChat(ScriptedSource(answer), ChatRenderer.of(tokenizer, "hermes", LONG)), asked


CALL = '<tool_call>\n{"name": "look", "arguments": {"b": 1.0,  "a": 2}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "look", "arguments": {"a": }\n</tool_call>'


@pytest.mark.parametrize(
    ("sampled", "arguments", "sequences", "echo"),
    [
        (CALL, '{"b": 1.0,  "a": 2}', 1, Echo.EQUAL),
        (CALL, '{"a":2,"b":1}', 1, Echo.REWRITTEN),
        (CALL, '{"a": 3, "b": 1}', 2, Echo.EDITED),
    ],
)
async def test_an_answer_is_known_by_the_id_of_its_call(
    bundled_home: Path, sampled: str, arguments: str, sequences: int, echo: Echo
) -> None:
    tokenizer, end = chatml(bundled_home)
    chat, _ = scripted(tokenizer, end, sampled, "Done.", "More.")
    question = Message.user("Q")
    first = await chat.complete(ChatRequest((question,), TOOLS))
    (call,) = first.message.tool_calls
    shown = Message.assistant("", tool_calls=(replace(call, arguments=arguments),))
    history = (question, shown, Message.tool(call, "blue"))
    second = await chat.complete(ChatRequest(history, TOOLS))
    third = await chat.complete(ChatRequest((*history, second.message, Message.user("And?")), TOOLS))
    built = build_sequences([first.call, second.call, third.call])
    assert len(built.sequences) == sequences
    assert chat.echoes.counts[echo] >= 1 and chat.echoes.foreign == 0


async def test_a_history_goes_on_twice_and_twins_draw_other_numbers(bundled_home: Path) -> None:
    tokenizer, end = chatml(bundled_home)
    chat, asked = scripted(tokenizer, end, "One.", "Two.", "Three.", "Four.")
    question = Message.user("Q")
    seeded = ChatRequest((question,), TOOLS)
    seeded = replace(seeded, sampling=replace(seeded.sampling, seed=7))
    first = await chat.complete(seeded)
    again = replace(seeded, messages=(question, first.message, Message.user("And?")))
    replies = [await chat.complete(again) for _ in range(3)]
    seeds = [params["seed"] for params in asked]
    assert seeds[0] == 7 and len(set(seeds)) == 4
    begun = len(first.call.tokens.prompt_ids) + len(first.call.tokens.sampled_ids)  # type: ignore[union-attr]
    prefixes = {reply.call.tokens.prompt_ids[:begun] for reply in replies if reply.call.tokens}
    assert prefixes == {(*first.call.tokens.prompt_ids, *first.call.tokens.sampled_ids)}  # type: ignore[union-attr]
    assert [
        len(sequence.calls)
        for sequence in build_sequences([first.call, *(r.call for r in replies)]).sequences
    ] == [2, 1, 1]


async def test_other_tools_begin_a_context_of_their_own(bundled_home: Path) -> None:
    tokenizer, end = chatml(bundled_home)
    chat, _ = scripted(tokenizer, end, "One.", "Two.")
    question = Message.user("Q")
    first = await chat.complete(ChatRequest((question,), TOOLS))
    second = await chat.complete(ChatRequest((question, first.message, Message.user("And?")), FEWER_TOOLS))
    assert len(build_sequences([first.call, second.call]).sequences) == 2
    assert second.message.role is Role.ASSISTANT
