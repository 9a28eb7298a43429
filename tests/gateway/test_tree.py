"""Calls of random clients become trajectories: all that continued one another, and nothing else."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from hermes.core import Message, Relation, ToolCall
from hermes.core.history import message_key
from hermes.gateway.tree import Chain, PlacedCall, Tree, build, text_key

TEXTS = ("ok", "done", "I will look.", "a longer answer, which a summary may well quote")


def opening_of(history: tuple[Message, ...]) -> str:
    return next((message.content for message in history if message.role == "user"), "")


def unread(name: str) -> str:
    raise AssertionError(f"nothing is quoted anywhere, and the opening of {name} is read again")


@dataclass
class World:
    """Clients that continue, retry, fork, edit, compact, drop and cut.

    There are few different texts, so that equal histories come about by chance as well.
    """

    draws: random.Random
    calls: list[PlacedCall] = field(default_factory=list)
    histories: list[tuple[Message, ...]] = field(default_factory=list)
    """With answers: where a client may go on."""
    openings: dict[str, str] = field(default_factory=dict)
    """By call: the user's first message."""
    number: int = 0

    def new_number(self) -> int:
        self.number += 1
        return self.number

    def ask(self, history: tuple[Message, ...], *, tools: bool = True, thread: str = "") -> None:
        kind = self.draws.choices(("answer", "failed", "cut"), (8, 1, 1))[0]
        answer = self.answer() if kind != "failed" else None
        name, opening = f"{self.new_number():05}", opening_of(history)
        self.openings[name] = opening
        self.calls.append(
            PlacedCall(
                name,
                tuple(map(message_key, history)),
                message_key(answer) if answer else None,
                complete=kind == "answer",
                tools=tools,
                thread=thread,
                issued=frozenset(call.id for call in answer.tool_calls) if answer else frozenset(),
                cited=frozenset(call.id for message in history for call in message.tool_calls),
                opening=text_key(opening),
                text=answer.content if answer else "",
            )
        )
        if answer is not None:
            self.histories.append((*history, answer))
        if kind != "answer" and self.draws.random() < 0.8:
            self.ask(history, tools=tools, thread=thread)

    def answer(self) -> Message:
        text = self.draws.choice(TEXTS)
        if self.draws.random() < 0.4:
            return Message.assistant(text, reasoning=self.draws.choice(("hm", None)))
        count = self.draws.randrange(1, 3)
        names = [f"call{self.new_number()}" for _ in range(count)]
        return Message.assistant(
            text, tool_calls=tuple(ToolCall(name, "bash", '{"a":  1}') for name in names)
        )

    def step(self) -> None:
        history = self.draws.choice(self.histories) if self.histories else ()
        match self.draws.randrange(8):
            case 0 | 1 | 2 if history:
                self.ask((*self.rewritten(history), *self.results(history)))
            case 3 if history:  # a twin or a retry: the same request once more
                self.ask(history[:-1])
            case 4 if history:  # an edit: a beginning, and something else
                self.ask((*history[: self.draws.randrange(len(history))], Message.user("otherwise")))
            case 5 if history:  # compaction
                self.ask((*history, Message.user("summarise")), tools=False)
                self.ask((Message.system("x"), Message.user(f"so far: {history[-1].content}")))
            case 6 if history:  # an answer that the client dropped
                self.ask((*history[:-1], Message.user("that was no call")))
            case _:
                self.ask((Message.system("x"), Message.user(self.draws.choice(("task one", "task two")))))

    def rewritten(self, history: tuple[Message, ...]) -> tuple[Message, ...]:
        """As clients send a history back: other arguments, no thinking, other white space."""
        return tuple(
            replace(
                message,
                reasoning=None,
                content=f" {message.content}\n" if message.role == "assistant" else message.content,
                tool_calls=tuple(replace(call, arguments='{"b":2}') for call in message.tool_calls),
            )
            for message in history
        )

    def results(self, history: tuple[Message, ...]) -> tuple[Message, ...]:
        calls = history[-1].tool_calls
        return tuple(Message.tool(call, f"result of {call.id}") for call in calls) or (Message.user("go on"),)


def check(calls: list[PlacedCall], tree: Tree) -> None:
    by_id = {call.id: call for call in calls}
    places = Counter(call for chain in tree.chains for call in (*chain.calls, *chain.failed))
    places.update(attempt for attempts in tree.attempts.values() for attempt in attempts)
    assert places == dict.fromkeys(by_id, 1), "each call has one place"
    chains = {chain.id: chain for chain in tree.chains}
    successors: dict[str, str] = {}
    chain_of: dict[str, Chain] = {}
    for chain in tree.chains:
        assert chain.id == [*chain.calls, *chain.failed][0]
        assert chain.parent is None or (chain.parent in chains and chain.parent != chain.id)
        assert (chain.parent is None) == (chain.relation is None)
        successors |= zip(chain.calls, chain.calls[1:], strict=False)
        chain_of |= dict.fromkeys(chain.calls, chain)
        for before, after in zip(chain.calls, chain.calls[1:], strict=False):
            assert continues(by_id[after], by_id[before]), f"{after} does not continue {before}"
    for chain in tree.chains:  # what begins a chain had nothing to continue
        first = by_id[chain.id]
        earlier = [call for call in calls if call.id < first.id and continues(first, call)]
        if not earlier or not first.complete:
            continue
        anchor = max(earlier, key=lambda call: (len(call.keys), call.id))
        taken = successors.get(anchor.id, "~") < first.id
        assert taken or chain_of[anchor.id].tools != first.tools, f"{first.id} continues {anchor.id}"


def continues(later: PlacedCall, earlier: PlacedCall) -> bool:
    whole = (*earlier.keys, earlier.answer)
    return earlier.answer is not None and later.keys[: len(whole)] == whole


@given(st.integers(0, 2**32 - 1))
def test_random_clients(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(world.draws.randrange(1, 25)):
        world.step()
    for related in (True, False):
        check(world.calls, build(world.calls, world.openings.__getitem__, related=related))


def call(name: str, history: tuple[Message, ...], answer: Message | None, **fields: object) -> PlacedCall:
    return PlacedCall(
        name,
        tuple(map(message_key, history)),
        message_key(answer) if answer else None,
        issued=frozenset(item.id for item in answer.tool_calls) if answer else frozenset(),
        opening=text_key(opening_of(history)),
        text=answer.content if answer else "",
        **fields,  # type: ignore[arg-type]
    )


USER = Message.user("please fix the tests")
LOOK = Message.assistant("I look.", tool_calls=(ToolCall("t1", "bash", '{"command":  "ls"}'),))
RESULT = Message.tool(LOOK.tool_calls[0], "a.py")
DONE = Message.assistant("All is done now, the tests pass.")


def test_an_answer_is_recognised_by_the_ids_of_its_calls() -> None:
    other = Message.assistant("", tool_calls=(ToolCall("t1", "invalid", "{}"),))
    tree = build([call("a", (USER,), LOOK), call("b", (USER, other, RESULT), DONE)], unread)
    assert [chain.calls for chain in tree.chains] == [["a", "b"]]


def test_a_title_call_is_beside_the_task_even_if_it_ends_first() -> None:
    title = Message.assistant("Fixing tests")
    tree = build(
        [call("a", (USER, Message.user("title?")), title, tools=False), call("b", (USER,), LOOK)], unread
    )
    side, main = tree.chains
    assert side.side and side.parent == main.id and side.relation is Relation.SIDE and main.parent is None


def test_without_a_session_a_call_without_tools_is_a_task() -> None:
    tree = build([call("a", (USER,), DONE, tools=False), call("b", (USER,), LOOK)], unread, related=False)
    assert [(chain.side, chain.parent) for chain in tree.chains] == [(False, None), (False, None)]


def test_parallel_sub_agents_with_equal_prompts_are_told_apart() -> None:
    task = "look at the folder and report"
    spawn = Message.assistant("", tool_calls=(ToolCall("s1", "Task", "{}"), ToolCall("s2", "Task", "{}")))
    parent = replace(call("a", (USER,), spawn, thread="main"), delegated=frozenset({text_key(task)}))
    sub = (Message.user(task),)
    calls = [
        parent,
        call("b", sub, LOOK, thread="one", parent_thread="main"),
        call("c", sub, replace(LOOK, tool_calls=(ToolCall("t2", "bash", "{}"),)), thread="two"),
        call("d", (*sub, LOOK, RESULT), DONE, thread="one", parent_thread="main"),
    ]
    main, first, second = build(calls, unread).chains
    assert first.calls == ["b", "d"] and second.calls == ["c"]
    assert {first.parent, second.parent} == {main.id}
    assert {first.relation, second.relation} == {Relation.DELEGATE}


def test_what_follows_a_compaction_points_at_what_was_compacted() -> None:
    history = (USER, LOOK, RESULT)
    summary = Message.assistant("The user wants the tests fixed; a.py was looked at.")
    quoting = Message.user(f"Before: {summary.content} Go on.")
    calls = [
        call("a", (USER,), LOOK),
        call("b", history, DONE),
        call("c", (*history, DONE, Message.user("summarise")), summary, tools=False),
        call("d", (quoting,), LOOK),
    ]
    main, side, after = build(calls, {"c": USER.content, "d": quoting.content}.__getitem__).chains
    assert main.calls == ["a", "b"] and side.side and side.parent == main.id
    assert after.parent == main.id and after.relation is Relation.CONTINUED


def test_a_cut_answer_is_a_leaf_unless_the_client_goes_on_from_it() -> None:
    stump = Message.assistant("I will")
    history = (USER, LOOK, RESULT)
    begun = [call("a", (USER,), LOOK), call("b", history, stump, complete=False)]
    retried = build([*begun, call("c", history, DONE)], unread)
    assert [chain.calls for chain in retried.chains] == [["a", "c"], ["b"]]
    went_on = build(
        [call("a", (USER,), stump, complete=False), call("b", (USER, stump, Message.user("go on")), DONE)],
        unread,
    )
    assert [chain.calls for chain in went_on.chains] == [["a", "b"]]


def test_a_response_whose_history_the_provider_has_continues_it() -> None:
    first = replace(call("a", (USER,), LOOK), answer_id="resp_1")
    second = replace(call("b", (RESULT,), DONE), previous="resp_1")
    assert [chain.calls for chain in build([first, second], unread).chains] == [["a", "b"]]
