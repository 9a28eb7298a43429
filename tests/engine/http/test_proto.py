"""Tensors on their way in and out: what the SDK writes is what the engine gets, and the other way round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tinker import types as tt
from tinker.proto import tinker_public_pb2 as pb
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import deserialize_forward_backward_output, deserialize_sample_response

from hermes.engine.server.tinker.proto import (
    OLDEST_SDK,
    encode_sample,
    encode_train,
    parse_forward_backward,
    read_data,
    read_loss,
)
from hermes.engine.types import EngineUserError, SampledSequence, SampleResult, TopK, TrainOutput

Array = np.ndarray[Any, Any]
REALS = st.floats(-1e6, 1e6, width=32)
TABLES = arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=REALS)


def sent(datum: tt.Datum, config: dict[str, float | str] | None = None) -> pb.ForwardBackwardRequest:
    """Through the SDK's own encoder and over the wire."""
    given = tt.ForwardBackwardInput(data=[datum], loss_fn="ppo", loss_fn_config=config)
    request = tt.ForwardBackwardRequest(forward_backward_input=given, model_id="m", seq_id=3)
    return parse_forward_backward(forward_backward_request_to_proto(request).SerializeToString())


@given(TABLES, st.booleans())
def test_what_the_sdk_writes_dense_or_sparse_is_what_the_engine_gets(table: Array, thin: bool) -> None:
    if thin:
        table = np.where(np.arange(table.size).reshape(table.shape) % 5 == 0, table, 0).astype(np.float32)
    datum = tt.Datum(
        model_input=tt.ModelInput(
            chunks=[tt.EncodedTextChunk(tokens=[1, 2]), tt.EncodedTextChunk(tokens=[7])]
        ),
        loss_fn_inputs={
            "weights": tt.TensorData.from_torch_sparse(torch.tensor(table)),
            "target_tokens": [1, 2, 3],
        },
    )
    (got,) = read_data(sent(datum))
    assert got.tokens.tolist() == [1, 2, 7]
    np.testing.assert_array_equal(got.inputs["weights"], table)
    assert got.inputs["target_tokens"].dtype == np.int64


def test_what_an_old_sdk_sends_is_refused_with_the_version_that_is_needed() -> None:
    with pytest.raises(EngineUserError, match="is JSON") as refused:
        parse_forward_backward(b'{"forward_backward_input": {}}')
    assert OLDEST_SDK in refused.value.hint


def test_settings_arrive_as_numbers_and_text() -> None:
    datum = tt.Datum(model_input=tt.ModelInput.from_ints([1]), loss_fn_inputs={"target_tokens": [1]})
    message = sent(datum, {"beta": 0.5, "mode": "soft"})
    assert read_loss(message).config == {"beta": 0.5, "mode": "soft"}
    message.loss_fn_config_v2.clear()  # an older SDK
    assert read_loss(message).config == {"beta": 0.5}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shape": [2, 2]}, "3 values do not fill the shape"),
        ({"shape": [-3]}, "do not fill the shape"),
        ({"dense": b"12345"}, "are not an array of float32"),
        ({"dtype": pb.DTYPE_BFLOAT16}, "use float32 or int64"),
        ({"crow": [0, 1, 9]}, "indices of the sparse tensor"),
        ({"crow": [0, 2, 1]}, "indices of the sparse tensor"),
        ({"crow": [0, 1, 2], "col": [0, 5]}, "indices of the sparse tensor"),
        ({"crow": [0, 1, 2], "col": [0, -1]}, "indices of the sparse tensor"),
        ({"crow": []}, "indices of the sparse tensor"),
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused_by_name(change: dict[str, Any], reason: str) -> None:
    message = pb.ForwardBackwardRequest()
    tensor = message.data.add().loss_fn_inputs["weights"]
    tensor.dtype = change.get("dtype", pb.DTYPE_FLOAT32)
    tensor.shape.extend(change.get("shape", []))
    if "crow" in change:
        tensor.shape.extend([2, 3])
        tensor.sparse_csr.values = np.ones(2, "<f4").tobytes()
        tensor.sparse_csr.crow_indices = np.array(change["crow"], "<i8").tobytes()
        tensor.sparse_csr.col_indices = np.array(change.get("col", [0, 1]), "<i8").tobytes()
    else:
        tensor.dense = change.get("dense", np.ones(3, "<f4").tobytes())
    with pytest.raises(EngineUserError, match=f"datum 0, weights: .*{reason}"):
        read_data(message)


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 0, 2, 3])), max_size=8))
def test_outputs_of_any_mix_of_shapes_come_back_in_order(shapes: list[tuple[int, int]]) -> None:
    arrays_out = tuple(
        np.arange(length * (width or 1), dtype=np.float32).reshape((length, width) if width else (length,))
        + index
        for index, (length, width) in enumerate(shapes)
    )
    encoded = encode_train(TrainOutput(arrays_out, {"loss:sum": 1.5}))
    output = deserialize_forward_backward_output(encoded)
    assert output.metrics == {"loss:sum": 1.5}
    assert len(output.loss_fn_outputs) == len(shapes)
    for one, expected in zip(output.loss_fn_outputs, arrays_out, strict=True):
        assert one["logprobs"].shape == list(expected.shape)
        np.testing.assert_array_equal(one["logprobs"].to_numpy(), expected)


def test_a_sample_comes_back_with_everything_in_it() -> None:
    topk = TopK(np.array([[5, 6]]), np.array([[-1.0, -2.0]], np.float32))
    sequence = SampledSequence(np.array([9]), np.array([-0.5], np.float32), "stop", topk)
    scores = np.array([np.nan, -3.0], np.float32)
    result = SampleResult((sequence,), scores, topk_prompt=topk, alt_tokens=topk, cached_tokens=4)
    back = deserialize_sample_response(encode_sample(result))
    assert (back.sequences[0].tokens, back.sequences[0].stop_reason) == ([9], "stop")
    assert back.sequences[0].topk_logprobs == [[(5, -1.0), (6, -2.0)]]
    assert back.prompt_logprobs == [None, -3.0]
    assert back.topk_prompt_logprobs == [[(5, -1.0), (6, -2.0)]]
    assert back.prompt_alt_tokens is not None
    assert back.prompt_alt_tokens.tokens.tolist() == [[5, 6]]
    assert back.prompt_cache_hit_tokens == 4
