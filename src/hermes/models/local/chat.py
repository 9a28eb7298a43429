"""A chat model in this process: transformers on the CPU, or on a GPU where there is one.

One worker thread processes one request after the other, so the event loop is never blocked, and a cancelled
or overdue request stops within a token. Every reply has its exact prompt ids, sampled ids and logprobs
(`local.decode` defines which). Its cost is 0, not unknown.

Precision: float32 on the CPU, where a model of the bundled one's size decodes as fast as in bfloat16, and a
forward pass gives the same logprobs (figures in docs/parsers.md); the checkpoint's own on a GPU.
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import ModelCall
from hermes.errors import MissingDependencyError, ProviderError, UsageError
from hermes.models.base import ChatReply, ChatRequest, OnDelta, StreamDelta
from hermes.models.local import bundled

if TYPE_CHECKING:
    from hermes.config.settings import PriceSettings
    from hermes.models.local.model import LocalModel, LocalReply


class LocalChat:
    """A `ChatModel` whose weights are in this process. They are loaded by the first request."""

    def __init__(self, name: str, find_folder: Callable[[], Path], version: str | None = None) -> None:
        """`version` identifies the weights in the records of calls; None: the folder may say it itself."""
        self._name = name
        self._version = version
        self._find_folder = find_folder
        self._model: LocalModel | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-model")
        self._closed = threading.Event()

    @classmethod
    def open(cls, name: str, home: Path, progress: bundled.Progress | None = None) -> LocalChat:
        """The bundled model by its name, or the model in a folder; an error if it is missing.

        `progress` is called with a line for each step that the first request has to wait for.
        """
        for package in ("torch", "transformers"):
            if importlib.util.find_spec(package) is None:
                raise MissingDependencyError(package, "train", f"Running {name} in this process")
        if name == bundled.NAME:
            if bundled.read_manifest(bundled.model_folder(home)) is None:
                bundled.locate_gguf()
            return cls(f"hermes/{name}", lambda: bundled.prepare(home, progress))
        folder = Path(name).expanduser()
        if not (folder / "config.json").is_file():
            raise UsageError(
                f"there is no model in {folder}.", f"Name a folder with a config.json, or '{bundled.NAME}'."
            )
        return cls(name, lambda: folder)

    @property
    def name(self) -> str:
        return self._name

    @property
    def price(self) -> PriceSettings:
        """A model in this process costs nothing."""
        from hermes.models.usage import FREE

        return FREE

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        """One answer; see `ChatModel`."""
        if self._closed.is_set():
            raise ProviderError(f"{self._name} was closed.")
        if any(message.images for message in request.messages):
            raise ProviderError(
                f"{self._name} cannot see images.", "Use a model that can, or leave them out."
            )
        loop = asyncio.get_running_loop()
        done = threading.Event()

        def on_text(text: str) -> None:
            if on_delta and text and not done.is_set():
                loop.call_soon_threadsafe(on_delta, StreamDelta(text=text))

        started_at = time.perf_counter()
        job = loop.run_in_executor(self._worker, self._generate, request, done, on_text)
        try:
            async with asyncio.timeout(request.timeout_s):
                return self._reply(request, await job, started_at)
        except TimeoutError:
            raise ProviderError(
                f"{self._name} did not finish within {request.timeout_s:g} s.",
                "Allow more time, or ask for fewer tokens.",
            ) from None
        finally:
            done.set()

    async def close(self) -> None:
        """Stops the running request and releases the weights."""
        self._closed.set()
        await asyncio.to_thread(self._worker.shutdown)
        self._model = None

    def _generate(
        self, request: ChatRequest, done: threading.Event, on_text: Callable[[str], None]
    ) -> LocalReply:
        """In the worker thread: loads the model for the first request, and generates the answer."""
        from hermes.models.local.model import GenerationCancelledError, load

        def cancelled() -> bool:
            return done.is_set() or self._closed.is_set()

        try:
            if cancelled():
                raise GenerationCancelledError
            if self._model is None:
                self._model = load(self._name, self._find_folder(), self._version)
            return self._model.generate(request, cancelled, on_text)
        except GenerationCancelledError:
            raise ProviderError(f"{self._name} was stopped before its answer was complete.") from None
        except RuntimeError as error:  # torch: out of memory, or a device that failed
            raise ProviderError(
                f"{self._name} failed: {error}", "A smaller model or context may fit."
            ) from error

    def _reply(self, request: ChatRequest, reply: LocalReply, started_at: float) -> ChatReply:
        call = ModelCall(
            model=self._name,
            endpoint="local",
            sampling=request.sampling,
            finish_reason=reply.finish_reason,
            usage=reply.usage,
            latency_ms=(time.perf_counter() - started_at) * 1000,
            cost_usd=0.0,
            first_token_ms=(reply.first_token_at - started_at) * 1000,
            raw=reply.raw,
            tokens=reply.tokens,
            parser="hermes" if reply.message.tool_calls else None,
        )
        return ChatReply(reply.message, call, reply.seen)
