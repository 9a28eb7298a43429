"""`metrics.curves`: what was kept of a `metrics.jsonl`, so that only what was appended since has to be read.

It is derived: it can be deleted at any time, and is not used unless it fits the metrics file. It fits if
samples of the bytes that it was made from are unchanged, which they are not when the file was cut off,
rewritten or replaced; if the file has the same length, its time must be the same, too. The rules of its
alerts are part of it. A process that is killed leaves the old file or the new one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hermes.disk.drafts import draft_file
from hermes.training.monitor.incidents.alerts import AlertRule, AlertWatch
from hermes.training.monitor.series.envelope import CurveEnvelope
from hermes.training.monitor.series.series import RunSeries

logger = logging.getLogger(__name__)

CURVES = "metrics.curves"
_FORMAT = f"hermes curves 1 {sys.byteorder}\n".encode()
_SAMPLES = 64
_SAMPLE_BYTES = 4096


def save_series(series: RunSeries, file: BinaryIO) -> bool:
    """Writes it beside the metrics; False: it cannot be written, which costs time and nothing else.

    `file`: the metrics, as they were read. Steps that were written twice are not kept.
    """
    if series.has_repeats:
        return False
    state = os.fstat(file.fileno())
    parts = [series.index.steps.tobytes(), series.index.times_s.tobytes(), series.index.offsets.tobytes()]
    envelopes = []
    for name, envelope in series.envelopes.items():
        values, numbers = envelope.state()
        envelopes.append({"name": name, "bytes": len(numbers), **values})
        parts.append(numbers)
    body = b"".join(parts)
    head = {
        "end": series.end,
        "size": state.st_size,
        "mtime_ns": state.st_mtime_ns,
        "sample": _sample(file, series.end),
        "count": series.count,
        "last_step": series.last_step,
        "notes": len(series.index.steps),
        "stride": series.index.stride,
        "alerts": series.watch.state(),
        "envelopes": envelopes,
        "crc32": zlib.crc32(body),
    }
    target = series.path.with_name(CURVES)
    try:
        with draft_file(target) as draft:
            with open(draft.handle, "wb", closefd=False) as written:
                written.write(_FORMAT + json.dumps(head).encode() + b"\n" + body)
            draft.path.replace(target)
    except OSError as error:
        logger.info("%s cannot be written: %s", target, error.strerror or error)
        return False
    return True


def load_series(path: Path, rules: Sequence[AlertRule], file: BinaryIO) -> RunSeries | None:
    """What was kept of the metrics in `file`; None: nothing, or it does not fit."""
    try:
        data = path.with_name(CURVES).read_bytes()
    except OSError:
        return None
    if not data.startswith(_FORMAT):
        return None
    head_bytes, _, body = data[len(_FORMAT) :].partition(b"\n")
    try:
        head = json.loads(head_bytes)
        if zlib.crc32(body) != head["crc32"] or not _fits(head, file):
            return None
        return _restored(path, rules, head, body)
    except (ValueError, KeyError, TypeError) as error:
        logger.info("%s is damaged: %s", path.with_name(CURVES), error)
        return None


def _fits(head: Any, file: BinaryIO) -> bool:
    state = os.fstat(file.fileno())
    if state.st_size < head["end"]:
        return False
    if state.st_size == head["size"] and state.st_mtime_ns != head["mtime_ns"]:
        return False
    return bool(_sample(file, head["end"]) == head["sample"])


def _restored(path: Path, rules: Sequence[AlertRule], head: Any, body: bytes) -> RunSeries | None:
    watch = AlertWatch.restored(rules, head["alerts"])
    if watch is None:
        return None
    series = RunSeries(path)
    series.watch = watch
    series.end, series.count, series.last_step = head["end"], head["count"], head["last_step"]
    series.index.stride = head["stride"]
    at = 0
    for notes in (series.index.steps, series.index.times_s, series.index.offsets):
        notes.frombytes(body[at : at + 8 * head["notes"]])
        at += 8 * head["notes"]
    for values in head["envelopes"]:
        series.envelopes[values["name"]] = CurveEnvelope.restored(values, body[at : at + values["bytes"]])
        at += values["bytes"]
    return series


def _sample(file: BinaryIO, end: int) -> str:
    """Of a short file all of it, of a long one blocks at equal distances, with the first and the last."""
    digest = hashlib.sha256(str(end).encode())
    if end <= _SAMPLES * _SAMPLE_BYTES:
        digest.update(os.pread(file.fileno(), end, 0))
    else:
        for number in range(_SAMPLES):
            offset = number * (end - _SAMPLE_BYTES) // (_SAMPLES - 1)
            digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, offset))
    return digest.hexdigest()
