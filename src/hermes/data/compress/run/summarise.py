"""Folded states written by a model: requested in batches, checked, stored at once, never paid for twice.

A text is used only if it is within the requested length and states every fact that later turns use.
Otherwise it is requested once more, with the problem in the prompt; then the row is folded by rules instead.
Nothing but the model's text about the content ever gets into the data, and no error message does.

Each usable text is on disk before it is used (`SummaryCache`), so an interrupted run, or another one over
the same rows, finds it there.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hermes.core import Message, Sampling, content_hash
from hermes.data.compress.counting.tokens import Counter, TokenizerSpec
from hermes.data.compress.folding.plan import SummaryRequest
from hermes.data.compress.run.metrics import SummaryCost
from hermes.disk.appendlog import AppendLog, read_lines
from hermes.disk.files import ensure_dir
from hermes.errors import AuthError, HermesError, HostError
from hermes.models.base import ChatModel, ChatRequest
from hermes.safety.text import clip

_VERSION = 1
"""Part of the cache's keys: raised when the instructions change."""
_CONTENT_CHARS = 16_000
_BATCH_CHARS = 24_000
_TRIES = 2
_TEMPERATURE = 0.3
_WORDS_PER_TOKEN = 0.6
_SECTION = re.compile(r"^#{2,4}[ \t]*(\d+)\b[^\n]*$", re.MULTILINE)
_INSTRUCTIONS = """\
You shorten parts of an agent's log. Each part is the output of a tool, or some of the agent's calls with
their results. For every part write what it states that matters for what comes later: results, states of
files, names, numbers, errors. Write facts only, in plain sentences or short lines; no opinion, no advice,
nothing that is not in the part. Words listed under 'keep' must occur exactly as written. Stay under the
number of words given.
Answer with one section for each part: a line '### N' with the part's number, then its text."""


class SummaryFailedError(HermesError):
    """No usable text for a row; `cost` counts the calls that were made."""

    def __init__(self, message: str, cost: SummaryCost) -> None:
        super().__init__(message)
        self.cost = cost


class WrittenState(NamedTuple):
    text: str
    request: str
    """Name of the model call that it came from; several texts can share one."""


class SummaryCache:
    """Texts by key, in an append-only file that several runs may share."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._texts: dict[str, WrittenState] = {}
        ensure_dir(path.parent)
        try:
            self._log = AppendLog(path)
            lines = list(read_lines(path))
        except OSError as error:
            raise _unwritable(path, error) from error
        for line in lines:
            try:
                entry = json.loads(line)
                self._texts[entry["key"]] = WrittenState(entry["text"], entry["request"])
            except (ValueError, KeyError, TypeError):
                continue  # an older version left torn lines in the file; their texts were never used

    def get(self, key: str) -> WrittenState | None:
        return self._texts.get(key)

    def put(self, texts: Mapping[str, WrittenState]) -> None:
        """Stores all texts of a model's answer on disk, or none of them, so that the rest of a row is never
        requested differently after a kill."""
        try:
            self._log.append(json.dumps({"key": key, **written._asdict()}) for key, written in texts.items())
        except OSError as error:
            raise _unwritable(self._path, error) from error
        self._texts.update(texts)

    def close(self) -> None:
        self._log.close()


class Summariser:
    """Has one model write states; used from one event loop."""

    def __init__(
        self,
        model: ChatModel,
        cache: SummaryCache,
        spec: TokenizerSpec,
        redact: Callable[[str], str],
        concurrency: int,
    ) -> None:
        """`redact` is applied to what is sent and to what is stored."""
        self._model = model
        self._cache = cache
        self._counter = Counter(spec)
        self._redact = redact
        self._slots = asyncio.Semaphore(concurrency)
        self._refusal: str | None = None
        """Why no further call can succeed (the provider refused the key)."""

    async def write(self, requests: Sequence[SummaryRequest]) -> tuple[dict[str, str], SummaryCost]:
        """The text of each request by its key; SummaryFailedError if one of them has no usable text."""
        by_key = {request.key: request for request in requests}
        states = {
            key: cached for key, request in by_key.items() if (cached := self._cache.get(self._key(request)))
        }
        problems: dict[str, str] = {}
        failed: list[str] = []
        for _ in range(_TRIES):
            for batch in _batches([request for key, request in by_key.items() if key not in states]):
                async with self._slots:  # until it is on disk: a kill loses no more answers than slots
                    texts, unusable, call = await self._call_model(batch, problems)
                    written = {key: WrittenState(self._redact(text), call) for key, text in texts.items()}
                    stored = {self._key(by_key[key]): state for key, state in written.items()}
                    await asyncio.to_thread(self._cache.put, stored)
                problems |= unusable
                failed += [call] * bool(unusable)
                states |= written
            if self._refusal is not None or len(states) == len(by_key):
                break
        # Counted by the calls that the texts came from, so that a cached text counts as it did before.
        cost = SummaryCost(len({*failed, *(state.request for state in states.values())}), len(failed))
        missing = [key for key in by_key if key not in states]
        if missing:
            raise SummaryFailedError(problems[missing[0]], replace(cost, fallback=problems[missing[0]]))
        return {key: state.text for key, state in states.items()}, cost

    async def close(self) -> None:
        """Closes the model and the cache."""
        await self._model.close()
        self._cache.close()

    async def _call_model(
        self, batch: Sequence[SummaryRequest], problems: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, str], str]:
        """Usable texts and the problems of the others, by key; and a name for the model call."""
        prompt = self._redact(_prompt(batch, problems))
        name = content_hash(prompt)
        max_tokens = sum(request.max_tokens for request in batch) * 2 + 64
        chat = ChatRequest(
            (Message.system(_INSTRUCTIONS), Message.user(prompt)),
            sampling=Sampling(temperature=_TEMPERATURE, max_tokens=max_tokens),
        )
        if self._refusal is not None:
            return {}, {request.key: self._refusal for request in batch}, name
        try:
            reply = await self._model.complete(chat)
        except HostError:
            raise
        except HermesError as error:
            if isinstance(error, AuthError):
                self._refusal = error.message
            return {}, {request.key: error.message for request in batch}, name
        texts = _sections(reply.message.content, batch)
        if reply.call.finish_reason == "length" and texts:
            texts.popitem()  # the last one was cut off
        checked = {request.key: await self._problem(request, texts.get(request.key)) for request in batch}
        unusable = {key: problem for key, problem in checked.items() if problem}
        return {key: text for key, text in texts.items() if key not in unusable}, unusable, name

    async def _problem(self, request: SummaryRequest, text: str | None) -> str | None:
        """Why a text cannot be used; None if it can."""
        if not text:
            return "the model gave no text for it"
        missing = [fact for fact in request.facts if fact not in text]
        if missing:
            return f"it leaves out {', '.join(missing[:5])}"
        tokens = (await asyncio.to_thread(self._counter.texts, [text]))[0]
        if tokens > request.max_tokens:
            return f"it has {tokens} tokens instead of at most {request.max_tokens}"
        return None

    def _key(self, request: SummaryRequest) -> str:
        return content_hash(f"{_VERSION}|{self._model.name}|{request.key}")


def _batches(requests: Sequence[SummaryRequest]) -> list[list[SummaryRequest]]:
    """The requests that go into one model call together."""
    batches: list[list[SummaryRequest]] = []
    room = 0
    for request in {request.key: request for request in requests}.values():
        size = min(len(request.content), _CONTENT_CHARS)
        if not batches or size > room:
            batches.append([])
            room = _BATCH_CHARS
        batches[-1].append(request)
        room -= size
    return batches


def _prompt(batch: Sequence[SummaryRequest], problems: Mapping[str, str]) -> str:
    parts = []
    for number, request in enumerate(batch, 1):
        head = f"### {number}\nat most {int(request.max_tokens * _WORDS_PER_TOKEN)} words"
        if request.facts:
            head += "\nkeep: " + ", ".join(request.facts)
        if request.key in problems:
            head += f"\nyour last text could not be used: {problems[request.key]}"
        parts.append(f"{head}\n---\n{clip(request.content, _CONTENT_CHARS)}\n---")
    return "\n\n".join(parts)


def _sections(answer: str, batch: Sequence[SummaryRequest]) -> dict[str, str]:
    """The sections of the model's answer by the key of their request, in the answer's order."""
    pieces = _SECTION.split(answer.encode("utf-8", "replace").decode("utf-8"))
    texts: dict[str, str] = {}
    for number, text in zip(pieces[1::2], pieces[2::2], strict=True):
        if 1 <= int(number) <= len(batch) and text.strip():
            texts[batch[int(number) - 1].key] = text.strip()
    return texts


def _unwritable(path: Path, error: OSError) -> HostError:
    return HostError(
        f"cannot write {path}: {error.strerror or error}",
        "free space on that disk, then run the same command again with --resume",
    )
