"""Which calls belong to one trajectory, and what the trajectories are to each other. Pure.

A call continues a trajectory exactly if its history is that trajectory's, answer included: every message
equal, and an answer recognised by the ids of its tool calls, because clients rewrite arguments and drop
thinking; an answer without calls by its text. Everything else begins a trajectory of its own, with the parent
that ids, history or the client's headers name, or with none. Nothing is merged that was not continued.

Calls are taken in the order in which they ended. An attempt that failed belongs to the call that repeated it.
The beginning of an answer that was cut is a leaf of its own if the client asked again and forgot it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hermes.core import Relation
from hermes.core.history import digest, extend

OPENING_CHARS, HINT_CHARS = 4_000, 500
"""Placing keeps this much of a first message and of an answer: thousands of calls are in memory at once."""
SHORTEST_HINT = 16
"""Characters of a text from which its being quoted says something."""


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """The facts of a call that placing needs."""

    id: str
    keys: tuple[bytes, ...]
    """The identity of each message of the request."""
    answer: bytes | None
    """The identity of the answer, or of what had arrived of it; None: nothing had."""
    complete: bool = True
    tools: bool = True
    """Whether tools were on offer."""
    thread: str = ""
    """The agent within the session, as the client's headers have it."""
    parent_thread: str | None = None
    issued: frozenset[str] = frozenset()
    """Ids of the tool calls in the answer."""
    cited: frozenset[str] = frozenset()
    """Ids of the tool calls in the request."""
    delegated: frozenset[bytes] = frozenset()
    """The `text_key` of each text among the arguments of the answer's calls that may be a task."""
    opening: bytes = b""
    """The `text_key` of the user's first message."""
    text: str = ""
    """The text of the answer."""
    answer_id: str = ""
    previous: str | None = None
    """The `answer_id` whose history the request left out."""


@dataclass
class Chain:
    """One trajectory: calls of which each continues the one before it."""

    id: str
    parent: str | None = None
    """The chain it comes from."""
    relation: Relation | None = None
    side: bool = False
    """A title, a summary: without tools beside calls that have them."""
    thread: str = ""
    tools: bool = True
    fork_of: str | None = None
    """The call whose history and answer it begins with, if it comes from its parent by that."""
    calls: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Attempts after the last answer that nothing repeated."""


@dataclass(frozen=True, slots=True)
class Tree:
    chains: tuple[Chain, ...]
    attempts: Mapping[str, tuple[str, ...]]
    """The attempts at the same request that failed before a call."""


def text_key(text: str) -> bytes:
    """The identity of a text by its beginning."""
    return digest(text.strip()[:OPENING_CHARS])


def build(calls: Sequence[PlacedCall], opening_text: Callable[[str], str], *, related: bool = True) -> Tree:
    """The tree of one group. `opening_text` reads the user's first message of a call again, where a summary
    may be quoted in it. `related` False: only their histories connect the calls, so those without tools are
    tasks like others."""
    builder = _Builder(calls, opening_text, side_calls=related)
    for call in calls:
        builder.place(call)
    builder.adopt_side_calls()
    return Tree(tuple(builder.chains.values()), builder.attempts)


class _Builder:
    def __init__(
        self, calls: Sequence[PlacedCall], opening_text: Callable[[str], str], *, side_calls: bool
    ) -> None:
        self._opening_text = opening_text
        self._side_calls = side_calls and any(call.tools for call in calls)
        self._calls = {call.id: call for call in calls}
        self._paths: dict[str, list[bytes]] = {}
        """The identity of each beginning of a call's history, the empty one first."""
        self._repeats: dict[tuple[str, bytes], list[str]] = {}
        """By thread and history: the whole answers, in the order in which they came."""
        self._continued: set[bytes] = set()
        """The histories with answers that a later request has."""
        ends: dict[str, bytes] = {}
        beginnings: dict[bytes, bytes] = {}
        for call in calls:
            paths = [ends.get(call.previous or "", b"")]
            for key in call.keys:  # equal beginnings of long histories are in memory once
                path = extend(paths[-1], key)
                paths.append(beginnings.setdefault(path, path))
            self._paths[call.id] = paths
            self._continued.update(paths)
            if call.answer is not None:
                ends[call.answer_id or call.id] = extend(paths[-1], call.answer)
                if call.complete:
                    self._repeats.setdefault((call.thread, paths[-1]), []).append(call.id)
        self.chains: dict[str, Chain] = {}
        self.attempts: dict[str, tuple[str, ...]] = {}
        self._chain_of: dict[str, Chain] = {}
        self._ends: dict[tuple[str | None, bytes], str] = {}
        """By thread (None: any) and history with answer: the latest call that ended there."""
        self._prompts: dict[tuple[str, bytes], str] = {}
        self._issuers: dict[str, str] = {}
        self._delegations: dict[bytes, str] = {}
        self._threads: dict[str, Chain] = {}
        """The latest chain of each thread, side calls left out."""
        self._summaries: list[tuple[str, Chain]] = []
        self._unanswered: dict[tuple[str, bytes], Chain] = {}

    def place(self, call: PlacedCall) -> None:
        here = self._paths[call.id][-1]
        repeats = self._repeats.get((call.thread, here), [])
        if call.answer is None:
            self._place_failure(call, here, repeats)
            return
        if call.complete:
            repeats.remove(call.id)
        kept_by_client = call.complete or extend(here, call.answer) in self._continued
        anchor = self._anchor(call)
        chain = self._chain_of[anchor] if anchor else None
        is_leaf = repeats and not kept_by_client
        if is_leaf or chain is None or not self._continues(call, chain, anchor):
            chain = self._branch(call, anchor)
        chain.calls.append(call.id)
        self._register(call, chain)

    def _place_failure(self, call: PlacedCall, here: bytes, repeats: list[str]) -> None:
        if repeats:
            self.attempts[repeats[0]] = (*self.attempts.get(repeats[0], ()), call.id)
            return
        anchor = self._anchor(call)
        if anchor is not None:
            self._chain_of[anchor].failed.append(call.id)
            return
        chain = self._unanswered.get((call.thread, here))
        if chain is None:
            chain = self._unanswered[call.thread, here] = self._branch(call, None)
        chain.failed.append(call.id)

    def _anchor(self, call: PlacedCall) -> str | None:
        """The call with the longest history that this one's begins with, answer included."""
        for path in reversed(self._paths[call.id]):
            anchor = self._ends.get((call.thread, path)) or self._ends.get((None, path))
            if anchor is not None:
                return anchor
        return None

    def _continues(self, call: PlacedCall, chain: Chain, anchor: str | None) -> bool:
        return chain.calls[-1] == anchor and chain.thread == call.thread and chain.tools == call.tools

    def _branch(self, call: PlacedCall, anchor: str | None) -> Chain:
        """A new chain; `anchor`: the call whose history and answer it begins with."""
        side = self._side_calls and not call.tools
        shared = self._chain_of[anchor] if anchor else None
        parent, relation = self._origin(call, shared)
        if side:
            parent, relation = parent or self._main(call), Relation.SIDE
        chain = Chain(
            call.id,
            parent.id if parent else None,
            relation if parent else None,
            side,
            call.thread,
            call.tools,
            anchor if shared is not None and parent is shared else None,
        )
        self.chains[call.id] = chain
        return chain

    def _main(self, call: PlacedCall) -> Chain | None:
        """The chain that a side call belongs to: its thread's latest, or the first one there is."""
        return self._threads.get(call.thread) or next(iter(self._threads.values()), None)

    def adopt_side_calls(self) -> None:
        """A title call may end before the first call of the task that it is beside."""
        for chain in self.chains.values():
            main = self._main(self._calls[chain.id])
            if chain.side and chain.parent is None and main is not None:
                chain.parent, chain.relation = main.id, Relation.SIDE

    def _origin(self, call: PlacedCall, shared: Chain | None) -> tuple[Chain | None, Relation | None]:
        issuer = self._delegations.get(call.opening)
        parent_chain = self._threads.get(call.parent_thread) if call.parent_thread is not None else None
        if parent_chain is not None and call.thread not in self._threads:
            return self._chain_of[issuer] if issuer else parent_chain, Relation.DELEGATE
        if shared is not None:
            return shared, Relation.CONTINUED
        for path in reversed(self._paths[call.id][1:]):
            earlier = self._prompts.get((call.thread, path))
            if earlier is not None:
                repeated = path == self._paths[call.id][-1]
                if repeated and self._calls[earlier].complete:
                    break  # a twin: nothing says that it is more
                return self._chain_of[earlier], Relation.RETRY if repeated else Relation.CONTINUED
        if issuer is not None:
            return self._chain_of[issuer], Relation.DELEGATE
        issuers = [self._issuers[call_id] for call_id in call.cited if call_id in self._issuers]
        if issuers:
            return self._chain_of[max(issuers)], Relation.CONTINUED
        opening = self._opening_text(call.id) if self._summaries else ""
        for summary, chain in reversed(self._summaries):
            if summary in opening:
                return chain, Relation.CONTINUED
        if call.thread and call.thread in self._threads:
            return self._threads[call.thread], Relation.CONTINUED
        return None, None

    def _register(self, call: PlacedCall, chain: Chain) -> None:
        here = self._paths[call.id][-1]
        assert call.answer is not None
        end = extend(here, call.answer)
        self._chain_of[call.id] = chain
        self._ends[call.thread, end] = self._ends[None, end] = call.id
        self._prompts[call.thread, here] = call.id
        self._issuers |= dict.fromkeys(call.issued, call.id)
        self._delegations |= dict.fromkeys(call.delegated, call.id)
        if not chain.side:
            self._threads[call.thread] = chain
        elif chain.parent is not None and len(call.text.strip()) >= SHORTEST_HINT:
            self._summaries.append((call.text.strip(), self.chains[chain.parent]))
