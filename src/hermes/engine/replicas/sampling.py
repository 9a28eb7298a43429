"""A front runs each sample on one worker, and on another one if that worker dies.

A request has a seed from the beginning, so that it can be computed again. Tokens that were streamed already
are not sent twice: the second computation has to repeat them, and a request whose second computation differs
fails.

The worker with the least work gets a request, where a cached prefix counts as work saved. A worker's work is
counted in decoded tokens. What its prefix cache holds is not asked but remembered: the blocks of the prompts
that were sent to it last. A wrong guess costs time, never correctness. Not thread-safe.

A training call is split over replicas by shared prefixes and cost, and what they return is joined. The split
depends on the data and on the number of parts only, not on who is alive: a part that is computed again after
a failure, or by another replica, is the same part. Gradients are summed in the order of the parts, so that
the sum of the same parts has the same bits whoever computed them.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from hermes.engine.attention.packing import sort_sequences
from hermes.engine.info import EngineClosedError
from hermes.engine.replicas.client import WorkerClient, WorkerLostError
from hermes.engine.replicas.fleet import WorkerFleet
from hermes.engine.types import (
    Datum,
    EngineCapacityError,
    Floats,
    Ints,
    SampleRequest,
    SampleResult,
    TrainOutput,
)
from hermes.errors import HermesError

_MAX_DEATHS = 3
"""So many workers may die with one request in flight: then the request is the reason."""
_SEED_BITS = 62


@dataclass(slots=True, eq=False)
class _RoutedSample:
    policy_id: str | None
    request: SampleRequest
    """With a seed, and without a callback."""
    on_token: Callable[[int, int, float], None] | None
    future: Future[SampleResult] = field(default_factory=Future)
    deaths: int = 0
    streamed: dict[int, list[int]] = field(default_factory=dict)
    """Tokens by sample that the caller has."""
    repeated: dict[int, int] = field(default_factory=dict)
    """How many of them the present computation has repeated."""
    sent: tuple[WorkerClient, int] | None = None
    """The worker and the number of the call."""


class SampleRouter:
    """May be used from any thread."""

    def __init__(self, fleet: WorkerFleet, workers: int) -> None:
        self._fleet = fleet
        self._router = PrefixRouter(workers)
        self._waiting: list[_RoutedSample] = []
        """Without a worker: all are being started."""
        self._running: set[_RoutedSample] = set()

    def submit(self, policy_id: str | None, request: SampleRequest) -> Future[SampleResult]:
        params = request.params
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(_SEED_BITS))
        sample = _RoutedSample(policy_id, replace(request, on_token=None, params=params), request.on_token)
        sample.future.add_done_callback(lambda future: self._cancel(sample) if future.cancelled() else None)
        with self._fleet.lock:
            self._running.add(sample)
        self._dispatch(sample)
        return sample.future

    def forget_worker(self, number: int) -> None:
        """It was started again."""
        self._router.reset(number)

    def retry_waiting(self) -> None:
        """Called when a worker has become available, or none will."""
        with self._fleet.lock:
            waiting, self._waiting = self._waiting, []
        for sample in waiting:
            self._dispatch(sample)

    def end_all(self, error: HermesError) -> None:
        with self._fleet.lock:
            running = list(self._running)
        for sample in running:
            self._finish(sample, error=error)

    def _dispatch(self, sample: _RoutedSample) -> None:
        with self._fleet.lock:
            clients = self._fleet.available()
            if not clients:
                try:
                    self._fleet.check_alive()
                except HermesError as error:
                    self._finish(sample, error=error)
                else:
                    self._waiting.append(sample)
                return
            request = sample.request
            routed = self._router.route(
                sample.policy_id, request.prompt, request.num_samples, request.params.max_tokens, clients
            )
        sample.repeated = {}
        client = clients[routed.worker]
        on_token = None if sample.on_token is None else self._token_listener(sample)
        number, call = client.numbered_call(
            "sample", sample.policy_id, request, on_token is not None, on_token=on_token
        )
        sample.sent = (client, number)
        call.add_done_callback(lambda call: self._after(sample, routed, call))
        if sample.future.cancelled():  # before it was sent
            self._cancel(sample)

    def _token_listener(self, sample: _RoutedSample) -> Callable[[int, int, float], None]:
        """Passes tokens on, without those that an earlier computation has streamed."""

        def on_token(index: int, token: int, logprob: float) -> None:
            streamed, position = sample.streamed.setdefault(index, []), sample.repeated.get(index, 0)
            sample.repeated[index] = position + 1
            if position >= len(streamed):
                streamed.append(token)
                assert sample.on_token is not None
                sample.on_token(index, token, logprob)
            elif streamed[position] != token:
                raise EngineClosedError(
                    "The worker that streamed this answer died, and another would continue it differently.",
                    "Send the request again.",
                )

        return on_token

    def _after(self, sample: _RoutedSample, routed: RoutedRequest, call: Future[SampleResult]) -> None:
        error = call.exception()
        if isinstance(error, WorkerLostError):
            sample.deaths += 1
            if sample.future.done():
                self._finish(sample)
            elif sample.deaths < _MAX_DEATHS:
                self._dispatch(sample)
            else:
                text = f"{sample.deaths} workers died while they computed this request"
                self._finish(sample, error=EngineCapacityError(text, "Send a shorter one, or fewer samples."))
            return
        with self._fleet.lock:
            self._router.finish(routed)
        if error is not None:
            self._finish(sample, error=error)
        else:
            self._finish(sample, result=replace(call.result(), version=sample.policy_id or ""))

    def _finish(
        self,
        sample: _RoutedSample,
        *,
        result: SampleResult | None = None,
        error: BaseException | None = None,
    ) -> None:
        with self._fleet.lock:
            if sample not in self._running:
                return
            self._running.discard(sample)
        if not sample.future.set_running_or_notify_cancel():
            return
        if result is not None:
            sample.future.set_result(result)
        elif error is not None:
            sample.future.set_exception(error)

    def _cancel(self, sample: _RoutedSample) -> None:
        with self._fleet.lock:
            if sample in self._waiting:
                self._waiting.remove(sample)
                self._running.discard(sample)
        if sample.sent is not None:
            client, number = sample.sent
            client.call("cancel", number)


BLOCK_TOKENS = 32
PREFILL_WEIGHT = 0.2
"""A prompt's token against a decoded one: prompts are computed many tokens at once."""
ASSUMED_TOKENS = 256
"""The length of an answer whose request sets no limit."""
_MAX_BLOCKS = 65_536
"""Remembered for one worker."""


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    worker: int
    work: float
    """Decoded tokens, about."""


@dataclass(slots=True)
class _WorkerLoad:
    outstanding: float = 0.0
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Hashes of prefixes, least recently used first."""


class PrefixRouter:
    def __init__(self, workers: int) -> None:
        self._loads = [_WorkerLoad() for _ in range(workers)]

    def route(
        self,
        policy_id: str | None,
        prompt: Ints,
        samples: int,
        max_tokens: int | None,
        available: Iterable[int],
    ) -> RoutedRequest:
        """The worker for a request, whose work counts until `finish`. `available` must not be empty."""
        blocks = _prefix_hashes(policy_id, prompt)
        answers = samples * (ASSUMED_TOKENS if max_tokens is None else max_tokens)
        costs: dict[int, tuple[float, int]] = {}
        for worker in available:
            cached = self._cached_blocks(worker, blocks) * BLOCK_TOKENS
            work = answers + PREFILL_WEIGHT * (len(prompt) - cached)
            costs[worker] = (self._loads[worker].outstanding + work, worker)
        chosen = min(costs, key=lambda worker: costs[worker])
        load = self._loads[chosen]
        work = costs[chosen][0] - load.outstanding
        load.outstanding += work
        for block in blocks:
            load.blocks[block] = None
            load.blocks.move_to_end(block)
        while len(load.blocks) > _MAX_BLOCKS:
            load.blocks.popitem(last=False)
        return RoutedRequest(chosen, work)

    def finish(self, routed: RoutedRequest) -> None:
        load = self._loads[routed.worker]
        load.outstanding = max(0.0, load.outstanding - routed.work)

    def reset(self, worker: int) -> None:
        """The worker was started again: it has nothing to do and nothing cached."""
        self._loads[worker] = _WorkerLoad()

    def _cached_blocks(self, worker: int, blocks: list[int]) -> int:
        cached = self._loads[worker].blocks
        count = 0
        for block in blocks:
            if block not in cached:
                break
            count += 1
        return count


def _prefix_hashes(policy_id: str | None, prompt: Ints) -> list[int]:
    """The hashes of the prompt's whole blocks, each with everything before it."""
    hashes: list[int] = []
    last = hash(policy_id)
    for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        last = hash((last, prompt[start : start + BLOCK_TOKENS].tobytes()))
        hashes.append(last)
    return hashes


_SLACK = 0.25
"""How far from an equal share a cut may lie to keep a shared prefix together, as part of that share."""


def split_by_prefix(data: Sequence[Datum], parts: int) -> list[list[int]]:
    """Indices of the data of each part, at most `parts` of them, none empty.

    Sequences with a common prefix are neighbours; a cut costs the tokens of the prefix that it divides.
    """
    order, shared = sort_sequences([datum.tokens for datum in data])
    if not order:
        return []
    costs = np.array([len(data[index].tokens) for index in order]) - np.array(shared)
    ends = np.cumsum(costs)
    share = float(ends[-1]) / parts
    cuts = [0]
    for number in range(1, parts):
        cut = _best_cut(ends, shared, number * share, share)
        if cuts[-1] < cut < len(order):
            cuts.append(cut)
    cuts.append(len(order))
    return [order[low:high] for low, high in pairwise(cuts)]


def _best_cut(ends: Ints, shared: Sequence[int], target: float, share: float) -> int:
    """The position before which to cut: close to the target, where little is shared."""
    low = int(np.searchsorted(ends, target - _SLACK * share))
    high = int(np.searchsorted(ends, target + _SLACK * share))
    candidates = range(max(1, low), min(len(ends) - 1, high) + 1)
    nearest = max(1, min(len(ends) - 1, int(np.searchsorted(ends, target))))
    return min(
        candidates or [nearest],
        key=lambda position: (
            (shared[position] + abs(float(ends[position - 1]) - target), position)
            if position < len(shared)
            else (float("inf"), position)
        ),
    )


def sum_gradients(gradients: Sequence[Floats]) -> Floats:
    """In the order of the parts."""
    total = gradients[0].copy()
    for gradient in gradients[1:]:
        total += gradient
    return total


def join_outputs(parts: Sequence[Sequence[int]], outputs: Sequence[TrainOutput], count: int) -> TrainOutput:
    """One output, as if one engine had computed all data."""
    logprobs: list[Floats] = [np.zeros(0, np.float32)] * count
    for indices, output in zip(parts, outputs, strict=True):
        for index, values in zip(indices, output.logprobs, strict=True):
            logprobs[index] = values
    trained = sum(output.trained_tokens for output in outputs)
    names = list(dict.fromkeys(name for output in outputs for name in output.metrics))
    metrics = {name: _join_metric(name, outputs, trained) for name in names}
    return TrainOutput(tuple(logprobs), metrics, trained)


def _join_metric(name: str, outputs: Sequence[TrainOutput], trained: int) -> float:
    having = [output for output in outputs if name in output.metrics]
    values = [output.metrics[name] for output in having]
    reduction = name.rpartition(":")[2]
    if reduction == "mean":
        return sum(value * out.trained_tokens for value, out in zip(values, having, strict=True)) / trained
    if reduction == "min":
        return min(values)
    return max(values) if reduction == "max" else sum(values)
