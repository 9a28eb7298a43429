"""Stores, runs, checkpoints, journals and logs that a former commit wrote still open and continue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.former.disk import HERE, read_everything, unpack


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_everything_that_b0bc33a_wrote_is_read_as_it_read_it_itself(tmp_path: Path) -> None:
    former = json.loads((HERE / "b0bc33a.json").read_text())
    present = json.loads(json.dumps(read_everything(unpack(tmp_path))))
    former_weights, present_weights = former.pop("checkpoints"), present.pop("checkpoints")
    former_columns, present_columns = (set(facts["batch"].pop("columns")) for facts in (former, present))
    assert former_columns <= present_columns, "a column of a batch's rows is gone"
    for kind in former:
        assert present[kind] == former[kind], kind
    for step, logprobs in former_weights["logprobs"].items():
        assert present_weights["logprobs"][step][1:] == pytest.approx(logprobs[1:], abs=2e-3)
    assert present_weights["loss_after_a_step"] == pytest.approx(
        former_weights["loss_after_a_step"], abs=0.02
    )
