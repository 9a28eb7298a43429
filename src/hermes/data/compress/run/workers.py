"""Where rows are compressed: in processes for large inputs, in a thread for small ones; never on the event
loop.

Each worker has a tokenizer of its own. Processes are started afresh, not forked, so nothing of the parent
(its threads, its database connections) is in them; they end with it, however it ends.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from hermes.core.processors import usable_processors
from hermes.data.compress.counting.tokens import Counter, TokenizerSpec
from hermes.data.compress.folding.plan import FoldSettings
from hermes.data.compress.run.job import CompressItem, CompressResult, compress
from hermes.data.compress.run.metrics import SummaryCost
from hermes.errors import HostError

_counter: Counter | None = None
"""The counter of a worker process, made when it starts."""


class CompressWorkers:
    def __init__(self, executor: Executor, count: int, counter: Counter | None) -> None:
        """`counter` is None if each worker is a process with its own."""
        self._executor = executor
        self._counter = counter
        self.count = count

    async def compress(
        self,
        item: CompressItem,
        settings: FoldSettings,
        summaries: Mapping[str, str] | None,
        cost: SummaryCost,
    ) -> CompressResult:
        loop = asyncio.get_running_loop()
        if self._counter is not None:
            arguments = (item, settings, self._counter, summaries, cost)
            return await loop.run_in_executor(self._executor, compress, *arguments)
        try:
            return await loop.run_in_executor(self._executor, _compress_here, item, settings, summaries, cost)
        except BrokenProcessPool as error:
            raise HostError(
                f"a worker process ended while it had {item.where} or a row near it (out of memory?)",
                "run the same command again with --resume",
            ) from error


@contextmanager
def open_workers(spec: TokenizerSpec, processes: int) -> Iterator[CompressWorkers]:
    """`processes` 0: one thread of this process."""
    if processes == 0:
        thread = ThreadPoolExecutor(1, thread_name_prefix="compress")
        with thread:
            yield CompressWorkers(thread, 1, Counter(spec))
        return
    os.environ["PYTHONSAFEPATH"] = "1"  # the processes would look for modules in the current directory
    pool = ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), initializer=_start, initargs=(spec,)
    )
    try:
        yield CompressWorkers(pool, processes, None)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def processes_for(size_bytes: int) -> int:
    """As many as pay for their start on an input of this size; 0: none does."""
    return min(usable_processors(), 16) if size_bytes > 4_000_000 else 0


def _start(spec: TokenizerSpec) -> None:
    global _counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _counter = Counter(spec)


def _end_with_parent() -> None:
    """Ends the process with its parent: a worker of a killed parent would wait for rows for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _compress_here(
    item: CompressItem, settings: FoldSettings, summaries: Mapping[str, str] | None, cost: SummaryCost
) -> CompressResult:
    assert _counter is not None
    return compress(item, settings, _counter, summaries, cost)
