"""Arrays arrive as they were sent."""

from __future__ import annotations

import numpy as np
import torch

from hermes.engine.transfer import to_device


def test_arrays_of_any_dtype_and_shape_arrive_as_they_were() -> None:
    sent = [
        np.arange(5),
        np.zeros(0, np.int64),
        np.array([True, False, True]),
        np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
        np.arange(7, dtype=np.int32),
    ]
    found = to_device(sent, torch.device("cpu"))
    for one, other in zip(found, sent, strict=True):
        assert one.dtype == torch.from_numpy(np.ascontiguousarray(other)).dtype
        assert np.array_equal(one.numpy(), other)
    assert to_device([], torch.device("cpu")) == []
