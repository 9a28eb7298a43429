"""Weights and tables whose headers state what is not so: sizes, shapes, offsets, counts, kinds.

Random damage seldom makes a header that is well-formed and false. Each is accepted or refused with one
sentence, within the limits of test_strangers_files.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.security.strangers_files import (
    ESCAPED,
    adapter,
    dataset,
    gguf,
    imported,
    read_limited,
    rows,
    sample_safetensors,
    weights,
)

HUGE = (1 << 63) - 1


def text(value: str, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if size is None else size) + value.encode()


def gguf_file(
    *,
    version: int = 3,
    tensors: int = 1,
    entries: int = 1,
    metadata: bytes = text("general.name") + struct.pack("<I", 8) + text("x"),
    name: bytes = text("weight"),
    dimensions: tuple[int, ...] = (4, 4),
    count: int | None = None,
    kind: int = 0,
    offset: int = 0,
    data: bytes = bytes(64),
) -> bytes:
    header = b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + metadata + name
    header += struct.pack("<I", len(dimensions) if count is None else count)
    header += struct.pack(f"<{len(dimensions)}Q", *dimensions) + struct.pack("<IQ", kind, offset)
    return header.ljust(-(-len(header) // 32) * 32, b"\0") + data


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


GGUFS = {
    "a version of the future": gguf_file(version=4_000_000_000),
    "version 1": gguf_file(version=1),
    "tensors without end": gguf_file(tensors=HUGE),
    "entries without end": gguf_file(entries=HUGE),
    "a name without end": gguf_file(name=text("weight", HUGE)),
    "a name of 2^64 - 1": gguf_file(name=text("weight", (1 << 64) - 1)),
    "no name": gguf_file(name=text("")),
    "a name that is no text": gguf_file(name=struct.pack("<Q", 4) + b"\xff\xfe\x00\x80"),
    "the same tensor twice": gguf_file(tensors=2)[:-64] + bytes(200),
    "a great dimension": gguf_file(dimensions=(1 << 40, 1 << 40)),
    "a product that overflows": gguf_file(dimensions=(1 << 32, 1 << 32)),
    "a dimension of 0": gguf_file(dimensions=(0, 4)),
    "no dimensions": gguf_file(dimensions=()),
    "dimensions without end": gguf_file(count=0xFFFFFFFF),
    "a kind that is none": gguf_file(kind=4_000_000_000),
    "a quantised kind with an odd length": gguf_file(kind=2, dimensions=(5, 3)),
    "an offset behind the end": gguf_file(offset=1 << 40),
    "an offset that overflows": gguf_file(offset=(1 << 64) - 32),
    "an offset that is not aligned": gguf_file(offset=7),
    "data that is cut": gguf_file(data=bytes(10)),
    "an alignment of 0": gguf_file(metadata=entry("general.alignment", 4, struct.pack("<I", 0))),
    "an alignment without end": gguf_file(metadata=entry("general.alignment", 4, struct.pack("<I", 1 << 31))),
    "an alignment that is a text": gguf_file(metadata=entry("general.alignment", 8, text("x"))),
    "a value of no kind": gguf_file(metadata=entry("a", 99, bytes(8))),
    "an array without end": gguf_file(metadata=entry("a", 9, struct.pack("<IQ", 0, HUGE))),
    "an array of texts without end": gguf_file(metadata=entry("a", 9, struct.pack("<IQ", 8, 1 << 40))),
    "arrays in arrays": gguf_file(metadata=entry("a", 9, struct.pack("<IQ", 9, 1) * 20_000)),
    "an array of arrays without end": gguf_file(metadata=entry("a", 9, struct.pack("<IQ", 9, 1 << 60))),
}


def safetensors_file(header: object, data: bytes = bytes(64), size: int | None = None) -> bytes:
    written = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(written) if size is None else size) + written + data


def tensor(**changes: object) -> dict[str, object]:
    return {"model.a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64], **changes}}


SAFETENSORS = {
    "a header without end": safetensors_file(tensor(), size=HUGE),
    "a header of 0": safetensors_file(tensor(), size=0),
    "a header of 1 GiB that is not there": safetensors_file(tensor(), size=1 << 30),
    "a header that is a list": safetensors_file([1]),
    "a header of brackets": safetensors_file(b"[" * 100_000),
    "offsets behind the end": safetensors_file(tensor(data_offsets=[0, 1 << 40])),
    "offsets that run backwards": safetensors_file(tensor(data_offsets=[64, 0])),
    "negative offsets": safetensors_file(tensor(data_offsets=[-64, 0])),
    "offsets of another length": safetensors_file(tensor(data_offsets=[0, 60])),
    "offsets that are texts": safetensors_file(tensor(data_offsets=["0", "64"])),
    "no offsets": safetensors_file({"model.a": {"dtype": "F32", "shape": [4, 4]}}),
    "a shape that overflows": safetensors_file(tensor(shape=[1 << 32, 1 << 32])),
    "a negative shape": safetensors_file(tensor(shape=[-4, -4])),
    "a shape of fractions": safetensors_file(tensor(shape=[4.5, 4])),
    "a shape of 10,000 dimensions": safetensors_file(tensor(shape=[1] * 9_998 + [4, 4])),
    "a shape of ones and no end": safetensors_file(tensor(shape=[16])),
    "a kind that is none": safetensors_file(tensor(dtype="F33")),
    "a kind that is a number": safetensors_file(tensor(dtype=7)),
    "another tensor": safetensors_file({"model.b": tensor()["model.a"]}),
    "overlapping tensors": safetensors_file({**tensor(), "model.b": tensor()["model.a"]}),
    "100,000 tensors": safetensors_file({f"model.{n}": tensor()["model.a"] for n in range(100_000)}),
    "data behind the tensors": safetensors_file(tensor(), bytes(1000)),
    "metadata that is no text": safetensors_file({**tensor(), "__metadata__": {"a": [1]}}),
    "not a number": safetensors_file(tensor(), struct.pack("<f", float("nan")) * 16),
}

CONFIGS = {
    "rank 0": {"r": 0},
    "a negative rank": {"r": -4},
    "a great rank": {"r": 1 << 40},
    "a rank that is a text": {"r": "4"},
    "a rank of a fraction": {"r": 4.5},
    "no rank": {"peft_type": "LORA"},
    "a rank that is true": {"r": True},
    "an alpha that is a text": {"r": 4, "lora_alpha": "x"},
    "an alpha without end": {"r": 4, "lora_alpha": 1e400},
    "an alpha that is no number": {"r": 4, "lora_alpha": float("nan")},
    "a list": [1],
    "targets that are a number": {"r": 4, "target_modules": 7},
    "targets without end": {"r": 4, "target_modules": ["q" * 1000] * 1000},
    "a pattern that never ends": {"r": 4, "target_modules": "(a+)+$" * 50},
    "a rank pattern": {"r": 4, "rank_pattern": {"x": -1}},
    "another kind of adapter": {"r": 4, "peft_type": "../../x"},
    "a base model that is a path": {"r": 4, "base_model_name_or_path": "../" * 1000},
}


def refused_or_read(read: Callable[[Path], object], folder: Path, name: str, cases: dict[str, bytes]) -> None:
    paths = []
    for number, data in enumerate(cases.values()):
        paths.append(folder / str(number) / name)
        paths[-1].parent.mkdir(parents=True)
        paths[-1].write_bytes(data)
    named = dict(zip(cases, read_limited(read, paths), strict=True))
    assert {case: problem for case, problem in named.items() if problem.startswith(ESCAPED)} == {}
    assert {case: problem for case, problem in named.items() if "\n" in problem.strip()} == {}


def test_gguf(tmp_path: Path) -> None:
    refused_or_read(gguf, tmp_path, "model.gguf", {"as it should be": gguf_file(), **GGUFS})
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(gguf_file())
    assert read_limited(gguf, [whole]) == [""]


def test_safetensors(tmp_path: Path) -> None:
    import torch  # noqa: F401 - before the fork, so that no child has to

    refused_or_read(weights, tmp_path, "model.safetensors", SAFETENSORS)


@pytest.mark.parametrize("cases", [SAFETENSORS, CONFIGS], ids=["weights", "configuration"])
def test_adapters(cases: dict[str, bytes], tmp_path: Path) -> None:
    import torch  # noqa: F401

    import hermes.engine.lora.peft  # noqa: F401

    paths = []
    for number, case in enumerate(cases.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        paths.append(folder / "adapter_model.safetensors")
        sample_safetensors(paths[-1])
        (folder / "adapter_config.json").write_text(
            '{"r": 4}' if isinstance(case, bytes) else json.dumps(case)
        )
        if isinstance(case, bytes):
            paths[-1].write_bytes(case)
    named = dict(zip(cases, read_limited(adapter, paths), strict=True))
    assert {case: problem for case, problem in named.items() if problem.startswith(ESCAPED)} == {}


def false_parquets() -> dict[str, bytes]:
    """A table with each number near its end changed: footer, row groups, offsets and sizes of its columns."""
    import io

    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows()), buffer, compression="snappy")
    data = buffer.getvalue()
    (footer,) = struct.unpack("<I", data[-8:-4])
    begin = len(data) - 8 - footer
    cases = {
        f"a footer of {size}": data[:-8] + struct.pack("<I", size) + b"PAR1"
        for size in (0, 1, footer - 1, footer + 1, len(data), 0x7FFFFFFF, 0xFFFFFFFF)
    }
    for at in range(begin, len(data) - 8, max(1, footer // 200)):
        for value in (0x00, 0x7F, 0xFF):
            cases[f"byte {at} is {value}"] = data[:at] + bytes([value]) + data[at + 1 :]
    for at in range(4, begin, max(1, begin // 60)):
        cases[f"page byte {at}"] = data[:at] + b"\xff" + data[at + 1 :]
    return cases


@pytest.mark.parametrize("read", [dataset, imported], ids=["tasks", "import"])
def test_parquet(read: Callable[[Path], object], tmp_path: Path) -> None:
    import pyarrow.parquet  # noqa: F401

    refused_or_read(read, tmp_path, "rows.parquet", false_parquets())
