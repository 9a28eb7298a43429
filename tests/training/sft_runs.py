"""SFT runs of a few steps."""

from __future__ import annotations

import json
from pathlib import Path

from hermes.training.data.sft_examples import SftExample, SftExamples


def lesson(number: int, length: int = 8) -> SftExample:
    tokens = (5, 6, 7 + number, *(259 + (number * 37 + position * 11) % 250 for position in range(length)))
    return SftExample(tokens, (False, False, False, *[True] * length), str(number))


def few(count: int = 6) -> SftExamples:
    return SftExamples(train=[lesson(number) for number in range(count)])


def quiet(line: str) -> None:
    pass


def write_rows(path: Path, count: int = 6) -> Path:
    rows = [
        {"input_ids": list(one.tokens), "mask": [int(bit) for bit in one.loss_mask], "task_id": one.task}
        for one in few(count).train
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
