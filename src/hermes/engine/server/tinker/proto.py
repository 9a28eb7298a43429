"""Converts between the SDK's protobuf messages and the engine's types. Pure.

Byte fields are little-endian arrays. Sparse tensors are made dense: a cell without a value is 0, or -1 in
tensors of token ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as pb

from hermes.engine.server.tinker.schema import JsonTensor
from hermes.engine.types import Datum, EngineUserError, Loss, SampledSequence, SampleResult, TopK, TrainOutput

Array = NDArray[Any]

OLDEST_SDK = "0.25"
"""The first version that sends training data as protobuf."""

_DTYPES: dict[int, np.dtype[Any]] = {
    pb.DTYPE_FLOAT32: np.dtype("<f4"),
    pb.DTYPE_INT64: np.dtype("<i8"),
    pb.DTYPE_INT32: np.dtype("<i4"),
}
_JSON_DTYPES = {"float32": np.float32, "int64": np.int64}


class Sparsity(NamedTuple):
    """The layout of a sparse tensor (CSR), in which the response is sent as well."""

    crow: Array
    col: Array

    def rows(self) -> Array:
        return np.repeat(np.arange(len(self.crow) - 1), np.diff(self.crow))


def parse_forward_backward(body: bytes) -> pb.ForwardBackwardRequest:
    """EngineUserError: it is not a ForwardBackwardRequest."""
    if body.startswith(b"{"):
        raise EngineUserError(
            "the body is JSON, which old versions of the tinker SDK send", f"use tinker {OLDEST_SDK} or newer"
        )
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise EngineUserError(f"the body is not a ForwardBackwardRequest: {error}") from error
    return message


def read_loss(message: pb.ForwardBackwardRequest) -> Loss:
    config: dict[str, float | str] = dict(message.loss_fn_config)
    for name, value in message.loss_fn_config_v2.items():
        config[name] = value.text if value.WhichOneof("value") == "text" else value.number
    return Loss(message.loss_fn, config)


def read_data(message: pb.ForwardBackwardRequest) -> list[Datum]:
    """EngineUserError: a tensor does not match its shape, or a chunk is not text."""
    return [_datum(datum, index) for index, datum in enumerate(message.data)]


def _datum(datum: pb.Datum, index: int) -> Datum:
    where = f"datum {index}"
    for chunk in datum.model_input:
        if chunk.WhichOneof("chunk") != "encoded_text":
            raise EngineUserError(f"{where}: only text is supported, not {chunk.WhichOneof('chunk')}")
    raw = b"".join(chunk.encoded_text.tokens for chunk in datum.model_input)
    tokens = _array(raw, np.dtype("<i4"), f"{where}, tokens").astype(np.int64)
    inputs = {name: _tensor(tensor, f"{where}, {name}") for name, tensor in datum.loss_fn_inputs.items()}
    return Datum(tokens, inputs)


def _tensor(tensor: pb.Tensor, where: str) -> Array:
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise EngineUserError(f"{where}: dtype {tensor.dtype} is not supported, use float32 or int64")
    shape = tuple(tensor.shape)
    if tensor.WhichOneof("encoding") == "sparse_csr":
        sparse = tensor.sparse_csr
        crow = _array(sparse.crow_indices, np.dtype("<i8"), where)
        col = _array(sparse.col_indices, np.dtype("<i8"), where)
        return _dense(_array(sparse.values, dtype, where), Sparsity(crow, col), shape, 0, where)
    return _shaped(_array(tensor.dense, dtype, where), shape, where)


def _array(raw: bytes, dtype: np.dtype[Any], where: str) -> Array:
    if len(raw) % dtype.itemsize:
        raise EngineUserError(f"{where}: {len(raw)} bytes are not an array of {dtype.name}")
    return np.frombuffer(raw, dtype).copy()


def _shaped(values: Array, shape: tuple[int, ...], where: str) -> Array:
    if not shape:
        return values
    if min(shape) < 0 or int(np.prod(shape)) != values.size:
        raise EngineUserError(f"{where}: {values.size} values do not fill the shape {list(shape)}")
    return values.reshape(shape)


def _dense(values: Array, layout: Sparsity, shape: tuple[int, ...], empty: int, where: str) -> Array:
    crow, col = layout
    fits = (
        len(shape) == 2
        and min(shape) >= 0
        and len(crow) == shape[0] + 1
        and crow[0] == 0
        and crow[-1] == len(col) == len(values)
        and bool((np.diff(crow) >= 0).all())
        and bool(((col >= 0) & (col < shape[1])).all())
    )
    if not fits:
        raise EngineUserError(f"{where}: the indices of the sparse tensor do not fit the shape {list(shape)}")
    dense = np.full(shape, empty, values.dtype)
    dense[layout.rows(), col] = values
    return dense


def json_tensor(tensor: JsonTensor, empty: int, where: str) -> tuple[Array, Sparsity | None]:
    """A JSON tensor as a dense array, and its layout if it is sparse."""
    try:
        values = np.array(tensor.data, _JSON_DTYPES[tensor.dtype])
    except OverflowError as error:
        raise EngineUserError(f"{where}: a value does not fit {tensor.dtype}") from error
    shape = tuple(tensor.shape or ())
    if tensor.sparse_crow_indices is None or tensor.sparse_col_indices is None:
        return _shaped(values, shape, where), None
    layout = Sparsity(np.array(tensor.sparse_crow_indices), np.array(tensor.sparse_col_indices, np.int64))
    return _dense(values, layout, shape, empty, where), layout


def encode_train(output: TrainOutput) -> bytes:
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    for name, value in output.metrics.items():
        message.metrics[name] = value
    for trailing, group in itertools.groupby(output.logprobs, key=lambda array: array.shape[1:]):
        _write_record(message.loss_fn_outputs.add(), list(group), trailing)
    encoded: bytes = message.SerializeToString()
    return encoded


def _write_record(record: pb.ArrayRecord, arrays: Sequence[Array], trailing: Iterable[int]) -> None:
    """All arrays have the same dimensions but the first."""
    raw = [_bytes(array, "<f4") for array in arrays]
    record.type_tag = "ArrayRecord"
    record.num_datums = len(arrays)
    field = record.fields["logprobs"]
    field.data = b"".join(raw)
    field.offsets = _bytes(np.cumsum([0, *map(len, raw)]), "<i8")
    field.dtype = pb.DTYPE_FLOAT32
    field.trailing_shape.extend(trailing)


def encode_sample(result: SampleResult, layout: Sparsity | None = None) -> bytes:
    """`layout`: of the target logprobs, if the request has them as a sparse tensor."""
    message = pb.SampleResponse(prompt_cache_hit_tokens=result.cached_tokens)
    for sequence in result.sequences:
        _write_sequence(message.sequences.add(), sequence)
    if result.prompt_logprobs is not None:
        message.prompt_logprobs = _bytes(result.prompt_logprobs, "<f4")
    if result.topk_prompt is not None:
        _write_topk(message.topk_prompt_logprobs, result.topk_prompt)
    if result.target_prompt_logprobs is not None:
        _write_targets(message.target_prompt_logprobs, result.target_prompt_logprobs, layout)
    if result.alt_tokens is not None:
        _write_tensor(message.prompt_alt_tokens.tokens, result.alt_tokens.ids, "<i8")
        _write_tensor(message.prompt_alt_tokens.logprobs, result.alt_tokens.logprobs, "<f4")
    encoded: bytes = message.SerializeToString()
    return encoded


def _write_sequence(message: pb.SampledSequence, sequence: SampledSequence) -> None:
    message.stop_reason = pb.STOP_REASON_STOP if sequence.stop_reason == "stop" else pb.STOP_REASON_LENGTH
    message.tokens = _bytes(sequence.tokens, "<i4")
    message.logprobs = _bytes(sequence.logprobs, "<f4")
    if sequence.topk is not None:
        _write_topk(message.topk_sampled_logprobs, sequence.topk)


def _write_topk(message: pb.TopkLogprobs, topk: TopK) -> None:
    message.length, message.k = topk.ids.shape
    message.token_ids = _bytes(topk.ids, "<i4")
    message.logprobs = _bytes(topk.logprobs, "<f4")


def _write_targets(message: pb.Tensor, logprobs: Array, layout: Sparsity | None) -> None:
    if layout is None:
        _write_tensor(message, logprobs, "<f4")
        return
    message.sparse_csr.values = _bytes(logprobs[layout.rows(), layout.col], "<f4")
    message.sparse_csr.crow_indices = _bytes(layout.crow, "<i8")
    message.sparse_csr.col_indices = _bytes(layout.col, "<i8")
    message.dtype = pb.DTYPE_FLOAT32
    message.shape.extend(logprobs.shape)


def _write_tensor(message: pb.Tensor, array: Array, dtype: str) -> None:
    message.dense = _bytes(array, dtype)
    message.dtype = pb.DTYPE_INT64 if dtype == "<i8" else pb.DTYPE_FLOAT32
    message.shape.extend(array.shape)


def _bytes(array: Array, dtype: str) -> bytes:
    return np.ascontiguousarray(array, dtype).tobytes()
