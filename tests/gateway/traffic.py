"""Agents that converse at random, and a log in their own words of what they sent and what they read.

An agent writes its requests and reads the bytes of its answers with the code of this file alone. It drops
thinking, splits and rewrites what it sends back, retries, forks, edits, compacts, delegates, hangs up, and
goes on from answers that were cut, as the agents do that `hermes record` was made for.
"""

from __future__ import annotations

import gzip
import http.client
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from hermes.config.load import Config
from hermes.core import Relation
from hermes.gateway.journal import RecordedCall, Recording
from tests.gateway.requests import ROUTES
from tests.gateway.scripted import Call, Json, Reply, ScriptedProvider
from tests.waiting import wait_until

Item = str | Call
SUMMARY = "the tests were looked at and one of them was mended, as"
BREAKS = {"chat": 2, "messages": 2, "responses": 3}
"""Events before which nothing of an answer has arrived."""


@dataclass(frozen=True)
class Turn:
    """A message as the agent means it; of an answer its items in order."""

    role: str
    text: str = ""
    items: tuple[Item, ...] = ()
    call_id: str = ""
    source: int | None = None
    """Of an answer: the call that it answered; None: nobody sampled it."""


@dataclass(frozen=True)
class Answer:
    """What the agent read of an answer."""

    items: tuple[Item, ...] = ()
    thinking: str = ""
    whole: bool = False

    @property
    def text(self) -> str:
        return "".join(item for item in self.items if isinstance(item, str))

    @property
    def calls(self) -> list[Call]:
        return [item for item in self.items if isinstance(item, Call)]


@dataclass
class Sent:
    """One attempt at a call."""

    number: int
    reply: Reply
    session: str
    thread: str
    history: list[tuple[str, str, tuple[str, ...]]]
    """Role, text and ids of each message, as it was sent."""
    base: int | None
    """The call whose answer, and all before it, this history begins with."""
    tools: bool
    relation: Relation | None = None
    """What it is to `parent`, if it begins a trajectory and the agent made it that."""
    parent: int | None = None
    answer: Answer = field(default_factory=Answer)
    end: str = "complete"
    """Or failed, cut, cancelled."""


def mark_of(request: bytes) -> str:
    """The newest mark in a request."""
    return f"mark{max(map(int, re.findall(rb'mark([0-9]+)x', request)))}x"


class Traffic:
    """Several agents at once."""

    def __init__(
        self, draws: random.Random, provider: ScriptedProvider, url: str, config: Config, *, passed_on: bool
    ) -> None:
        self.draws, self.url, self.passed_on = draws, url, passed_on
        provider.script = self.script
        self._provider, self._config = provider, config
        self.log: list[Sent] = []
        self.later = 0
        """The attempts from this number on were made after the first ones were stored."""
        self.attempts: Counter[str] = Counter()
        self.replies: dict[str, list[Reply]] = {}
        """By the mark in the last message of a request: what the provider answers to it, in order."""
        self._lock = threading.Lock()

    def script(self, body: Json) -> Reply:
        return self.replies[mark_of(json.dumps(body).encode())].pop(0)

    def wait_until_asked(self, reply: Reply) -> None:
        wait_until(lambda: any(answered.gate is reply.gate for answered in list(self._provider.replies)))

    def wait_until_recorded(self, mark: str) -> None:
        """Every attempt at the request with this mark."""
        attempts = self.attempts[mark]
        wait_until(lambda: sum(mark_of(call.request) == mark for call in self._recorded()) == attempts)

    def _recorded(self) -> list[RecordedCall]:
        files = self._config.home.rglob("*.jsonl")
        return [call for path in files for _, call in Recording(path).calls()]

    def run(self, agents: int) -> None:
        self._agents = [Agent(self, random.Random(self.draws.random())) for _ in range(agents)]
        self.start([agent.run for agent in self._agents])

    def go_on(self, url: str) -> None:
        """The same agents, later."""
        self.url, self.later = url, len(self.log)
        self.attempts.clear()
        self.start([agent.run for agent in self._agents])

    def start(self, works: list[Any]) -> None:
        errors: list[BaseException] = []

        def guarded(work: Any) -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  it is raised below
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def add(self, **fields: Any) -> Sent:
        with self._lock:
            sent = Sent(len(self.log), **fields)
            self.log.append(sent)
            return sent


class Agent:
    def __init__(
        self,
        traffic: Traffic,
        draws: random.Random,
        protocol: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.traffic, self.draws = traffic, draws
        self.protocol = protocol or draws.choice(list(ROUTES))
        self.name = f"s{draws.randrange(1 << 40)}"
        self.session = self.thread = self.name
        self.headers: dict[str, str] = {}
        self.hidden = headers is None and draws.random() < 0.35
        """Nothing but its histories says who it is."""
        if headers is not None:
            self.headers = headers
        elif not self.hidden:
            self.headers = {
                "messages": {"x-claude-code-session-id": self.name},
                "responses": {"session-id": self.name, "thread-id": self.name},
                "chat": {"x-session-id": self.name},
            }[self.protocol]
        self.history: list[Turn] = []

    def run(self) -> None:
        if not self.history:
            self.begin(self.words("please mend the tests"))
        for _ in range(self.draws.randrange(1, 9)):
            self.step()

    def begin(self, opening: str, relation: Relation | None = None, parent: int | None = None) -> None:
        self.history = [Turn("system", f"You are {self.name}."), Turn("user", opening)]
        self.ask(relation=relation, parent=parent)

    def step(self) -> None:
        match self.draws.randrange(11):
            case 0:
                self.side()
            case 1:
                self.compact()
            case 2:
                self.edit()
            case 3:
                self.ask()  # a twin: the same request once more
            case 4 if self.draws.random() < 0.5:
                self.history += [Turn("user", "/x"), Turn("assistant", items=("No response requested.",))]
                self.go_on()
            case 5 | 6:
                self.delegate()
            case _:
                self.go_on()

    def words(self, text: str) -> str:
        with self.traffic._lock:
            mark = f"mark{len(self.traffic.replies)}x"
            self.traffic.replies[mark] = []
        return f"{text} with  two spaces\n{mark}"

    def go_on(self) -> None:
        """Results of the calls of the last answer, or the user's next message, or both."""
        last = next((turn for turn in reversed(self.history) if turn.role == "assistant"), None)
        calls = [item for item in last.items if isinstance(item, Call)] if last else []
        if self.history[-1].role != "assistant":
            calls = []
        self.history += [Turn("tool", self.words(f"result of {call.id}"), call_id=call.id) for call in calls]
        if not calls or self.draws.random() < 0.2:
            self.history.append(Turn("user", self.words("go on")))
        self.ask()

    def edit(self) -> None:
        """A beginning of the history, which ends otherwise: a fork, if an answer is in it."""
        own = [at for at, turn in enumerate(self.history) if at and turn.role in ("user", "assistant")]
        at = self.draws.choice(own)
        del self.history[at + (self.history[at].role == "assistant") :]
        if self.history[-1].role == "assistant":
            self.go_on()
            return
        self.history.append(Turn("user", self.words("otherwise")))
        self.ask()

    def side(self) -> None:
        """A title: no tools, a prompt of its own."""
        before, self.history = self.history, [Turn("system", "Find a title."), Turn("user", self.words("x"))]
        self.ask(tools=False, relation=Relation.SIDE)
        self.history = before

    def compact(self) -> None:
        """The summary is asked for in the conversation or beside it, and stands in the next first message."""
        before = self.history
        if self.draws.random() < 0.5 and before[-1].role == "assistant":
            self.go_on_without_tools()
        else:
            self.history = [Turn("system", "Summarise."), Turn("user", self.words(f"<all>{before}</all>"))]
            self.ask(tools=False, relation=Relation.SIDE)
        last = self.history[-1]
        if last.role != "assistant":
            self.history = before
            return
        summary = "".join(item for item in last.items if isinstance(item, str))
        self.history = [before[0], Turn("user", self.words(f"So far: {summary}\n"))]
        if self.draws.random() < 0.3:
            ask, told = Turn("user", "What did we do so far?"), Turn("assistant", items=(summary,))
            self.history = [before[0], ask, told, Turn("user", self.words("go on"))]
        self.ask(relation=None if self.hidden else Relation.CONTINUED)

    def go_on_without_tools(self) -> None:
        calls = [item for item in self.history[-1].items if isinstance(item, Call)]
        more = [Turn("tool", self.words("done"), call_id=call.id) for call in calls]
        self.history = [*self.history, *more, Turn("user", self.words("Summarise."))]
        self.ask(tools=False, relation=Relation.SIDE)

    def delegate(self) -> None:
        """One or two sub-agents at once, whose answers are the results of the calls that began them."""
        if len(self.history) > 40:
            return
        tasks = [self.words("look at the folder") for _ in range(self.draws.randrange(1, 3))]
        self.history.append(Turn("user", self.words("delegate")))
        calls = [json.dumps({"prompt": task, "kind": "general"}) for task in tasks]
        self.ask(calls=calls)
        last = self.history[-1]
        if last.role != "assistant" or len(last.items) < len(calls) or last.source is None:
            return
        source = self.traffic.log[last.source]
        if source.end != "complete":
            return
        children = [self.child(index) for index in range(len(tasks))]
        works = [
            lambda child=child, task=task: child.work(task, source.number)  # type: ignore[misc]
            for child, task in zip(children, tasks, strict=True)
        ]
        self.traffic.start(works)
        issued = [item for item in last.items if isinstance(item, Call)]
        results = [
            Turn("tool", f"{child.result()} {self.words('')}", call_id=call.id)
            for child, call in zip(children, issued, strict=True)
        ]
        self.draws.shuffle(results)
        self.history += results
        self.ask()

    def child(self, index: int) -> Agent:
        name = f"{self.name}-{index}-{self.draws.randrange(1 << 40)}"
        headers = {
            "messages": {**self.headers, "x-claude-code-agent-id": name},
            "responses": {**self.headers, "thread-id": name},
            "chat": {"x-session-id": name, "x-parent-session-id": self.name},
        }[self.protocol]
        draws = random.Random(self.draws.random())
        child = Agent(self.traffic, draws, self.protocol, {} if self.hidden else headers)
        child.session, child.hidden = self.session, self.hidden
        child.thread = self.thread if self.hidden else name
        return child

    def work(self, task: str, parent: int) -> None:
        self.begin(task, Relation.DELEGATE, parent)
        for _ in range(self.draws.randrange(3)):
            self.go_on()

    def result(self) -> str:
        return "".join(item for item in self.history[-1].items if isinstance(item, str))

    # one call, with what may go wrong before it is answered

    def ask(
        self,
        *,
        tools: bool = True,
        relation: Relation | None = None,
        parent: int | None = None,
        calls: list[str] | None = None,
    ) -> None:
        """Asks until there is an answer, or gives up; an answer, or what the agent kept of it, is added."""
        if self.history[-1].role == "assistant":  # a twin is asked for
            if self.history[-1].source is None:
                return
            del self.history[-1]
        sources = [turn.source for turn in self.history if turn.source is not None]
        stream = self.draws.random() < 0.7
        body, history = Writer(self.protocol, self.draws).write(self.history, tools, stream)
        if self.protocol == "responses" and self.headers:
            body["prompt_cache_key"] = self.session
        while True:
            sent = self.traffic.add(
                reply=Reply(),
                session=self.session,
                thread=self.thread,
                history=history,
                base=sources[-1] if sources else None,
                tools=tools,
                relation=relation,
                parent=parent,
            )
            self._attempt(sent, body, calls if tools else [])
            gives_up = self.draws.random() < 0.15
            if sent.answer.items and (sent.answer.whole or self.draws.random() < 0.4):
                self.history.append(Turn("assistant", items=sent.answer.items, source=sent.number))
                return
            if gives_up:
                return

    def _attempt(self, sent: Sent, body: Json, calls: list[str] | None) -> None:
        sent.end = self.draws.choices(("complete", "failed", "cut", "cancelled"), (14, 2, 2, 1))[0]
        reply = self._reply(sent, calls)
        if sent.end == "failed":
            reply = replace(reply, status=self.draws.choice([429, 500, 503, 529]))
        elif sent.end == "cut" and body["stream"]:
            reply = replace(reply, cut_after=self.draws.randrange(1, BREAKS[self.protocol] + 6))
        elif sent.end == "cancelled":
            gate_at = self.draws.randrange(1, 6)
            reply = replace(reply, gate=threading.Event(), gate_at=gate_at, silent=not body["stream"])
        else:
            sent.end = "complete"
            reply = replace(reply, compressed=self.draws.random() < 0.3)
        sent.reply = reply
        data = json.dumps(body).encode()
        mark = mark_of(data)
        self.traffic.replies[mark].append(reply)
        self.traffic.attempts[mark] += 1
        headers = {"content-type": "application/json", **self.headers}
        if self.draws.random() < 0.2:
            data, headers["content-encoding"] = gzip.compress(data), "gzip"
        place = urlsplit(self.traffic.url)
        prefix = self.draws.choice(["", "/v1", "/v1/v1"])
        connection = http.client.HTTPConnection(place.netloc, timeout=60)
        connection.request("POST", f"{place.path}{prefix}/{ROUTES[self.protocol]}", data, headers)
        if sent.end == "cancelled":
            self._hang_up(mark, connection, reply)
            return
        response = connection.getresponse()
        try:
            received = response.read()
        except http.client.IncompleteRead as error:
            received = error.partial
        connection.close()
        assert (response.status == 200) == (reply.status == 200), (response.status, received)
        if response.getheader("content-encoding") == "gzip":
            received = gzip.decompress(received)
        if reply.status == 200:
            sent.answer = read(self.protocol, received, body["stream"])
            if sent.answer.whole:  # cut behind its last event, or not at all
                sent.end = "complete"

    def _hang_up(self, mark: str, connection: http.client.HTTPConnection, reply: Reply) -> None:
        """Goes away while the provider waits; it reads nothing, and keeps nothing."""
        assert reply.gate is not None and connection.sock is not None
        self.traffic.wait_until_asked(reply)
        connection.close()
        self.traffic.wait_until_recorded(mark)
        reply.gate.set()

    def _reply(self, sent: Sent, calls: list[str] | None) -> Reply:
        """Texts and calls by turns; the texts hold the number of the attempt."""
        number, draws = sent.number, self.draws
        if calls is None:
            calls = ['{"command":  "ls", "n" : 1.0}', "{}", '{"broken": '][: draws.choice([0, 0, 1, 2, 3])]
        made = [Call("bash", text, f"call{number}y{at}") for at, text in enumerate(calls)]
        order: list[Item] = [*made]
        for at in range(draws.randrange(1, 4) if self.protocol != "chat" and self.traffic.passed_on else 1):
            text = f"n{number}y I  look{at}.\n" if sent.tools else f"n{number}y {SUMMARY} {number} has it."
            order.insert(draws.randrange(len(order) + 1) if at else 0, text)
        if made and draws.random() < 0.2:
            order = [*made]
        return Reply(
            "".join(item for item in order if isinstance(item, str)),
            draws.choice(["", f"hm {number}"]),
            tuple(made),
            tuple(order),
            prompt_tokens=1000 + number,
            output_tokens=1 + number % 50,
        )


class Writer:
    """Writes a history in one protocol, never twice in the same form."""

    def __init__(self, protocol: str, draws: random.Random) -> None:
        self.protocol, self.draws = protocol, draws
        self.sent: list[tuple[str, str, tuple[str, ...]]] = []
        self.order: list[str] = []

    def write(self, turns: list[Turn], tools: bool, stream: bool) -> tuple[Json, list[Any]]:
        body: Json = {"model": "model-1", "stream": stream}
        items: list[Json] = []
        for turn in turns:
            items += getattr(self, f"_{self.protocol}")(turn, body)
        if self.protocol == "messages":
            items = list(self._merged(items))
        body["input" if self.protocol == "responses" else "messages"] = items
        if tools:
            function = {"name": "bash", "description": "runs it", "parameters": {"type": "object"}}
            body["tools"] = {
                "chat": [{"type": "function", "function": function}],
                "responses": [{"type": "function", **function}],
                "messages": [{"name": "bash", "description": "runs it", "input_schema": {"type": "object"}}],
            }[self.protocol]
        return body, self._results_in_order()

    def _results_in_order(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Results stand in the order of their calls, whatever order they were sent in."""
        place = {name: at for at, name in enumerate(self.order)}
        rows: list[tuple[str, str, tuple[str, ...]]] = []
        for row in self.sent:
            at = len(rows)
            while (
                row[0] == "tool"
                and rows[at - 1][0] == "tool"
                and place[rows[at - 1][2][0]] > place[row[2][0]]
            ):
                at -= 1
            rows.insert(at, row)
        return rows

    def _note(self, role: str, text: str, *ids: str) -> None:
        self.sent.append((role, text, ids))

    def _content(self, text: str, kind: str, between: str) -> tuple[Any, str]:
        """As text, as parts, or as both mixed, in the same pieces each time; and what of it is shown."""
        words = re.findall(r"\s*\S+\s*", text)
        cut = len(text) % (2 * len(words) + 1)
        pieces = [piece for piece in ("".join(words[:cut]), "".join(words[cut:])) if piece]
        if len(pieces) == 1 and self.draws.random() < 0.6:
            return text, text
        parts = [piece if self.draws.random() < 0.3 else {"type": kind, "text": piece} for piece in pieces]
        return parts, between.join(pieces)

    def _returned(self, turn: Turn) -> list[Item]:
        """An answer as it is sent back: arguments are written otherwise, and white space at its ends."""
        items: list[Item] = []
        for item in turn.items:
            if isinstance(item, Call):
                try:
                    again = json.dumps(json.loads(item.arguments), sort_keys=True)
                except ValueError:
                    again = '{"raw": "x"}'
                items.append(replace(item, arguments=self.draws.choice([item.arguments, again, "{}"])))
            else:
                items.append(item)
        if len(items) == 1 and isinstance(items[0], str) and self.draws.random() < 0.3:
            items[0] = f" {items[0].strip()} "
        self.order += [item.id for item in items if isinstance(item, Call)]
        return items

    def _chat(self, turn: Turn, body: Json) -> list[Json]:
        if turn.role == "assistant":
            items = self._returned(turn)
            calls = [item for item in items if isinstance(item, Call)]
            text = "".join(item for item in items if isinstance(item, str))
            content, shown = self._content(text, "text", "") if text else (None, "")
            self._note("assistant", shown, *(call.id for call in calls))
            made = [
                {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                for one in calls
            ]
            return [{"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}]
        content, shown = self._content(turn.text, "text", "")
        role = self.draws.choice(["system", "developer"]) if turn.role == "system" else turn.role
        self._note(turn.role, shown, *([turn.call_id] if turn.call_id else []))
        return [
            {"role": role, "content": content, **({"tool_call_id": turn.call_id} if turn.call_id else {})}
        ]

    def _responses(self, turn: Turn, body: Json) -> list[Json]:
        if turn.role == "assistant":
            items = self._returned(turn)
            texts = [item for item in items if isinstance(item, str)]
            self._note("assistant", "".join(texts), *(item.id for item in items if isinstance(item, Call)))
            rows: list[Json] = []
            if self.draws.random() < 0.3:
                rows.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]})
            for item in items:
                if isinstance(item, Call):
                    call = {"call_id": item.id, "name": item.name, "arguments": item.arguments}
                    rows.append({"type": "function_call", **call})
                else:
                    content, _ = self._content(item, "output_text", "")
                    rows.append({"type": "message", "role": "assistant", "content": content})
            return rows
        if turn.role == "system" and len(turn.text) % 2:
            body["instructions"] = turn.text
            self._note("system", turn.text)
            return []
        content, shown = self._content(turn.text, "input_text", "\n")
        self._note(turn.role, shown, *([turn.call_id] if turn.call_id else []))
        if turn.role == "tool":
            return [{"type": "function_call_output", "call_id": turn.call_id, "output": content}]
        role = "developer" if turn.role == "system" else "user"
        return [{"type": "message", "role": role, "content": content}]

    def _messages(self, turn: Turn, body: Json) -> list[Json]:
        if turn.role == "assistant":
            items = self._returned(turn)
            texts = [item for item in items if isinstance(item, str)]
            self._note("assistant", "".join(texts), *(item.id for item in items if isinstance(item, Call)))
            blocks: list[Any] = []
            for item in items:
                if isinstance(item, Call):
                    blocks.append({"type": "tool_use", "id": item.id, "name": item.name, "input": {"a": 1}})
                else:
                    blocks.append({"type": "text", "text": item, "cache_control": {"type": "ephemeral"}})
            if len(texts) == len(items) == 1 and self.draws.random() < 0.5:
                return [{"role": "assistant", "content": texts[0]}]
            return [{"role": "assistant", "content": blocks}]
        content, shown = self._content(turn.text, "text", "\n")
        self._note(turn.role, shown, *([turn.call_id] if turn.call_id else []))
        if turn.role == "system":
            body["system"] = content
            return []
        if turn.role == "tool":
            content = [{"type": "tool_result", "tool_use_id": turn.call_id, "content": content}]
        return [{"role": "user", "content": content}]

    def _merged(self, items: list[Json]) -> Iterator[Json]:
        """Results of one answer are in one message; a question behind them may be, too."""
        group: Json | None = None
        for item in items:
            results = isinstance(item["content"], list) and any(
                isinstance(block, dict) and block.get("type") == "tool_result" for block in item["content"]
            )
            if group is not None and (results or (item["role"] == "user" and self.draws.random() < 0.5)):
                more = item["content"] if isinstance(item["content"], list) else [item["content"]]
                group["content"] = [*group["content"], *more]
                group = group if results else None
                continue
            if group is not None:
                group = None
            group = item if results else None
            yield item


def read(protocol: str, data: bytes, stream: bool) -> Answer:
    """An answer from its bytes, as far as they came."""
    if not stream:
        body = json.loads(data)
        kinds = {"chat": _read_chat, "messages": _read_messages, "responses": _read_responses}
        return replace(kinds[protocol](body), whole=True)
    lines = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    whole = any(line == "[DONE]" for line in lines)
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    whole |= any(event.get("type") in ("message_stop", "response.completed") for event in events)
    items: dict[Any, Any] = {}
    thinking = ""
    for event in events:
        kind, delta = event.get("type"), event.get("delta")
        if protocol == "chat" and event["choices"]:
            delta = event["choices"][0]["delta"]
            thinking += delta.get("reasoning_content") or ""
            if delta.get("content"):
                items["text"] = items.get("text", "") + delta["content"]
            for call in delta.get("tool_calls") or ():
                old = items.get(call["index"]) or Call(call["function"]["name"], "", call["id"])
                arguments = old.arguments + (call["function"].get("arguments") or "")
                items[call["index"]] = replace(old, arguments=arguments)
        elif kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
            block = event["content_block"]
            items[event["index"]] = Call(block["name"], "", block["id"])
        elif kind == "content_block_delta":
            thinking += delta.get("thinking", "")
            _extend(items, event["index"], delta.get("text", "") + delta.get("partial_json", ""))
        elif kind == "response.output_item.added" and event["item"]["type"] == "function_call":
            item = event["item"]
            items[event["output_index"]] = Call(item["name"], "", item["call_id"])
        elif kind in ("response.output_text.delta", "response.function_call_arguments.delta"):
            _extend(items, event["output_index"], delta)
        elif kind == "response.output_item.done" and event["item"]["type"] == "reasoning":
            thinking += event["item"]["summary"][0]["text"]
    return Answer(tuple(items.values()), thinking, whole)


def _extend(items: dict[Any, Any], at: Any, text: str) -> None:
    old = items.get(at, "")
    if isinstance(old, Call):
        items[at] = replace(old, arguments=old.arguments + text)
    elif old or text:
        items[at] = old + text


def _read_chat(body: Json) -> Answer:
    message = body["choices"][0]["message"]
    calls = [
        Call(one["function"]["name"], one["function"]["arguments"], one["id"])
        for one in message.get("tool_calls") or ()
    ]
    texts = [message["content"]] if message["content"] else []
    return Answer((*texts, *calls), message.get("reasoning_content") or "")


def _read_messages(body: Json) -> Answer:
    blocks = body["content"]
    items = [
        block["text"]
        if block["type"] == "text"
        else Call(block["name"], json.dumps(block["input"]), block["id"])
        for block in blocks
        if block["type"] != "thinking"
    ]
    return Answer(tuple(items), "".join(block.get("thinking", "") for block in blocks))


def _read_responses(body: Json) -> Answer:
    items: list[Item] = []
    thinking = ""
    for item in body["output"]:
        if item["type"] == "message":
            items.append(item["content"][0]["text"])
        elif item["type"] == "function_call":
            items.append(Call(item["name"], item["arguments"], item["call_id"]))
        else:
            thinking += item["summary"][0]["text"]
    return Answer(tuple(items), thinking)
