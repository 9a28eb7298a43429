"""Folded states written by a model: asked for in batches, checked, kept at once, never paid for twice.

A text counts only if it is no longer than asked and states every fact that later turns use. One that is not
is asked for once more, saying what was wrong; then the row is folded by rules instead. Nothing that the
model did not say about the content, and no sign of a failure, ever gets into the data.

Each good text is on disk before it is used (`SummaryCache`), so an interrupted run, or another one over the
same rows, finds it there.
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
from hermes.core.appendlog import AppendLog, read_lines
from hermes.core.files import ensure_dir
from hermes.data.compress.counting.tokens import Counter, TokenizerSpec
from hermes.data.compress.folding.plan import SummaryRequest
from hermes.data.compress.run.metrics import SummaryCost
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
    """No usable text for a row; `asked` says what was tried."""

    def __init__(self, message: str, cost: SummaryCost) -> None:
        super().__init__(message)
        self.cost = cost


class WrittenState(NamedTuple):
    text: str
    request: str
    """Names the request that it came from; several texts can share one."""


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
    """Asks one model for states; used from one event loop."""

    def __init__(
        self,
        model: ChatModel,
        cache: SummaryCache,
        spec: TokenizerSpec,
        redact: Callable[[str], str],
        concurrency: int,
    ) -> None:
        """`redact` goes over what is sent and what is kept."""
        self._model = model
        self._cache = cache
        self._counter = Counter(spec)
        self._redact = redact
        self._slots = asyncio.Semaphore(concurrency)
        self._refusal: str | None = None
        """Why no further call can succeed (a refused key)."""

    async def write(self, requests: Sequence[SummaryRequest]) -> tuple[dict[str, str], SummaryCost]:
        """The text of each span by its key; SummaryFailedError if one of them cannot be had."""
        by_key = {request.key: request for request in requests}
        states = {
            key: cached for key, request in by_key.items() if (cached := self._cache.get(self._key(request)))
        }
        problems: dict[str, str] = {}
        failed: list[str] = []
        for _ in range(_TRIES):
            for batch in _batches([request for key, request in by_key.items() if key not in states]):
                async with self._slots:  # until it is on disk: a kill loses no more answers than slots
                    good, bad, request = await self._ask(batch, problems)
                    written = {key: WrittenState(self._redact(text), request) for key, text in good.items()}
                    stored = {self._key(by_key[key]): state for key, state in written.items()}
                    await asyncio.to_thread(self._cache.put, stored)
                problems |= bad
                failed += [request] * bool(bad)
                states |= written
            if self._refusal is not None or len(states) == len(by_key):
                break
        # Counted by the requests that the texts came from, so that one found in the cache counts as it did.
        cost = SummaryCost(len({*failed, *(state.request for state in states.values())}), len(failed))
        missing = [key for key in by_key if key not in states]
        if missing:
            raise SummaryFailedError(problems[missing[0]], replace(cost, fallback=problems[missing[0]]))
        return {key: state.text for key, state in states.items()}, cost

    async def close(self) -> None:
        """Lets go of the model and the cache."""
        await self._model.close()
        self._cache.close()

    async def _ask(
        self, batch: Sequence[SummaryRequest], problems: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, str], str]:
        """Texts that can be used and what is wrong with the others, by key; and a name for the request."""
        prompt = self._redact(_prompt(batch, problems))
        name = content_hash(prompt)
        longest = sum(span.max_tokens for span in batch) * 2 + 64
        request = ChatRequest(
            (Message.system(_INSTRUCTIONS), Message.user(prompt)),
            sampling=Sampling(temperature=_TEMPERATURE, max_tokens=longest),
        )
        if self._refusal is not None:
            return {}, {span.key: self._refusal for span in batch}, name
        try:
            reply = await self._model.complete(request)
        except HostError:
            raise
        except HermesError as error:
            if isinstance(error, AuthError):
                self._refusal = error.message
            return {}, {span.key: error.message for span in batch}, name
        answers = _sections(reply.message.content, batch)
        if reply.call.finish_reason == "length" and answers:
            answers.popitem()  # the last one was cut off
        wrong = {span.key: await self._problem(span, answers.get(span.key)) for span in batch}
        bad = {key: problem for key, problem in wrong.items() if problem}
        return {key: text for key, text in answers.items() if key not in bad}, bad, name

    async def _problem(self, span: SummaryRequest, text: str | None) -> str | None:
        """Why a text cannot be used; None if it can."""
        if not text:
            return "the model gave no text for it"
        missing = [fact for fact in span.facts if fact not in text]
        if missing:
            return f"it leaves out {', '.join(missing[:5])}"
        tokens = (await asyncio.to_thread(self._counter.texts, [text]))[0]
        if tokens > span.max_tokens:
            return f"it has {tokens} tokens instead of at most {span.max_tokens}"
        return None

    def _key(self, span: SummaryRequest) -> str:
        return content_hash(f"{_VERSION}|{self._model.name}|{span.key}")


def _batches(spans: Sequence[SummaryRequest]) -> list[list[SummaryRequest]]:
    """Spans that go into one request together."""
    batches: list[list[SummaryRequest]] = []
    room = 0
    for span in {span.key: span for span in spans}.values():
        size = min(len(span.content), _CONTENT_CHARS)
        if not batches or size > room:
            batches.append([])
            room = _BATCH_CHARS
        batches[-1].append(span)
        room -= size
    return batches


def _prompt(batch: Sequence[SummaryRequest], problems: Mapping[str, str]) -> str:
    parts = []
    for number, span in enumerate(batch, 1):
        head = f"### {number}\nat most {int(span.max_tokens * _WORDS_PER_TOKEN)} words"
        if span.facts:
            head += "\nkeep: " + ", ".join(span.facts)
        if span.key in problems:
            head += f"\nyour last text could not be used: {problems[span.key]}"
        parts.append(f"{head}\n---\n{clip(span.content, _CONTENT_CHARS)}\n---")
    return "\n\n".join(parts)


def _sections(answer: str, batch: Sequence[SummaryRequest]) -> dict[str, str]:
    """The answer's sections by the key of the part they are about, in the answer's order."""
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
