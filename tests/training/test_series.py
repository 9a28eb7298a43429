"""Metrics files that grow, are cut off, rewritten or replaced: the curves are always those of the file."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.training.monitor.incidents.alerts import find_alerts, parse_rule
from hermes.training.monitor.series import following, index, rows
from hermes.training.monitor.series.envelope import CurveEnvelope
from hermes.training.monitor.series.following import CurvesSink, FollowedMetrics
from hermes.training.monitor.series.saved import CURVES, load_series
from hermes.training.monitor.series.series import RunSeries
from hermes.training.monitor.sinks import METRICS, JsonLines, Sinks

RULES = (parse_rule("x > 0.9"), parse_rule("y < 0.2 for 2"))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5000), st.integers(10, 400))
def test_a_spike_survives_downsampling(values: list[float], points: int) -> None:
    envelope = CurveEnvelope(points)
    envelope.extend(range(1, len(values) + 1), values)
    steps, kept, _ = envelope.curve()
    assert steps == sorted(set(steps)) and len(steps) <= points
    assert kept == [values[step - 1] for step in steps]
    assert (min(kept), max(kept)) == (min(values), max(values))
    assert steps[0] == 1 and steps[-1] == len(values)
    assert len(steps) == len(values) or len(steps) * 4 > points, "no coarser than it has to be"


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3000), st.integers(4, 300), st.randoms())
def test_how_points_arrive_changes_nothing(values: list[float], points: int, chance: random.Random) -> None:
    single, cut = CurveEnvelope(points), CurveEnvelope(points)
    steps = range(10, 10 + len(values))
    for step, value in zip(steps, values, strict=True):
        single.add(step, value)
    at = 0
    while at < len(values):
        end = at + chance.randint(1, 700)
        cut.extend(steps[at:end], values[at:end])
        head, numbers = cut.state()
        cut = CurveEnvelope.restored(json.loads(json.dumps(head)), numbers)
        at = end
    assert cut.state() == single.state() and cut.curve() == single.curve()


class MetricsFile:
    """A file as a careless writer leaves it, and what its rows are."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.path = path
        self._chance = chance
        self.by_step: dict[int, dict[str, float]] = {}
        self._step = chance.randint(-2, 3)

    def grow(self, count: int) -> None:
        with self.path.open("ab") as file:
            for _ in range(count):
                file.write(self._line())

    def _line(self) -> bytes:
        chance = self._chance.random()
        if chance < 0.03:
            return self._chance.choice((b"nonsense\n", b"\n", b'{"step": "1"}\n', b"[1]\n", b'{"x": 1}\n'))
        if chance < 0.05:
            return b'{"step": 3, "x": "' + b"long" * 4000 + b'"}\n'
        if chance < 0.09 and self.by_step:
            step = self._chance.choice(list(self.by_step))
        else:
            self._step += self._chance.randint(1, 3)
            step = self._step
        row: dict[str, float] = {"step": step, "time_s": 10.0 * step, "x": round(self._chance.random(), 3)}
        if self._chance.random() < 0.5:
            row["y"] = round(self._chance.random(), 3)
        self.by_step[step] = row
        return json.dumps(row).encode() + b"\n"

    def rows(self) -> list[dict[str, float]]:
        return [self.by_step[step] for step in sorted(self.by_step)]


def check(series: RunSeries, expected: Sequence[dict[str, float]]) -> None:
    for name in ("x", "y"):
        points = [(int(row["step"]), row[name]) for row in expected if name in row]
        envelope = CurveEnvelope()
        envelope.extend([step for step, _ in points], [value for _, value in points])
        kept = series.envelopes.get(name)
        assert (kept.curve() if kept else None) == (envelope.curve() if points else None)
    assert series.count == len(expected)
    assert series.last_step == (expected[-1]["step"] if expected else 0)
    assert series.alerts == find_alerts(expected, series.rules)
    assert series.recent(7) == list(expected[-7:])
    before_s = 0.0
    for row in expected:
        assert series.find(int(row["step"])) == (row, before_s)
        before_s = row["time_s"]
        later = [other for other in expected if other["step"] > row["step"]]
        assert series.rows_after(int(row["step"]), 9) == (later if len(later) < 10 else None)
        assert series.step_at(row["time_s"] * 1000 + 1) == row["step"]
    assert series.find(10**9) is None


@pytest.mark.parametrize("seed", range(12))
def test_any_file_is_read_as_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(rows, "CHUNK_BYTES", 700)
    monkeypatch.setattr(rows, "_MAX_LINE_BYTES", 5000)
    monkeypatch.setattr(index, "MAX_NOTES", 16)
    chance = random.Random(seed)
    file = MetricsFile(tmp_path / METRICS, chance)
    file.path.write_bytes(b'{"step": 3, "x": "' + b"long" * 4000 + b'"}\n')  # read first as too long a line
    followed = FollowedMetrics(file.path)
    for _ in range(6):
        followed.refresh(RULES, save_after_bytes=1000)
        check(followed.series, file.rows())
        file.grow(chance.randint(0, 60))
        if chance.random() < 0.3:
            followed = FollowedMetrics(file.path)


def write(path: Path, steps: Sequence[int], factor: float = 1.0) -> list[dict[str, float]]:
    written = [{"step": step, "time_s": 10.0 * step, "x": factor * (step % 10) / 10} for step in steps]
    path.write_text("".join(json.dumps(row) + "\n" for row in written))
    return written


def kept(path: Path) -> bool:
    """Whether what was kept of the file is used."""
    with path.open("rb") as file:
        return load_series(path, RULES, file) is not None


def test_what_was_read_is_kept_and_continued(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    written = write(path, range(1, 30_001))
    FollowedMetrics(path).refresh(RULES, save_after_bytes=1000)
    assert kept(path) and (path.with_name(CURVES).stat().st_mode & 0o777) == 0o600
    with path.open("a") as file:
        file.write('{"step": 30001, "time_s": 300010.0, "x": 0.5}\n{"step": 30002, "time_')
    with path.open("rb") as file_read:
        series = load_series(path, RULES, file_read)
    assert series is not None and series.count == 30_000, "no row was read again"
    followed = FollowedMetrics(path)
    followed.refresh(RULES)
    check_ends(followed.series, [*written, {"step": 30001, "time_s": 300010.0, "x": 0.5}])


def check_ends(series: RunSeries, expected: Sequence[dict[str, float]]) -> None:
    """As `check`, for a file that is too long to find every row."""
    envelope = CurveEnvelope()
    envelope.extend([int(row["step"]) for row in expected], [row["x"] for row in expected])
    assert series.envelopes["x"].curve() == envelope.curve()
    assert series.count == len(expected) and series.alerts == find_alerts(expected, series.rules)
    assert series.recent(20) == list(expected[-20:])
    for row in random.Random(0).sample(list(expected), 20):
        assert (series.find(int(row["step"])) or ("", 0))[0] == row


def test_a_file_that_is_another_one_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    write(path, range(1, 30_001))
    followed = FollowedMetrics(path)
    followed.refresh(RULES, save_after_bytes=1000)

    def expect(written: Sequence[dict[str, float]]) -> None:
        assert not kept(path)
        for reader in (followed, FollowedMetrics(path)):
            reader.refresh(RULES, save_after_bytes=1 << 40)
            check_ends(reader.series, written)

    size = path.stat().st_size
    os.truncate(path, size // 2)
    rows_left = [json.loads(line) for line in path.read_bytes().splitlines()[:-1]]
    expect(rows_left)
    expect(write(path, range(1, 40_001), factor=2.0))
    same_length = write(path, range(1, 30_001), factor=-1.0)
    os.truncate(path, path.stat().st_size)
    expect(same_length)
    replacement = tmp_path / "new"
    written = write(replacement, range(5, 50_001), factor=3.0)
    replacement.rename(path)
    expect(written)
    path.unlink()
    followed.refresh(RULES)
    assert followed.series.count == 0 and followed.series.find(1) is None


def test_curves_of_other_rules_and_damaged_ones_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    written = write(path, range(1, 1001))
    FollowedMetrics(path).refresh(RULES, save_after_bytes=1000)
    with path.open("rb") as file:
        assert load_series(path, RULES[:1], file) is None
    whole = path.with_name(CURVES).read_bytes()
    chance = random.Random(1)
    for _ in range(60):
        damaged = bytearray(whole)
        at = chance.randrange(len(damaged))
        if chance.random() < 0.5:
            damaged[at] ^= 1 << chance.randrange(8)
        else:
            del damaged[at:]
        path.with_name(CURVES).write_bytes(damaged)
        followed = FollowedMetrics(path)
        followed.refresh(RULES, save_after_bytes=1 << 40)
        check_ends(followed.series, written)


def test_a_trainer_keeps_the_curves_of_a_long_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "SAVE_EVERY_BYTES", 5000)
    sinks = Sinks([JsonLines(tmp_path), CurvesSink(tmp_path / METRICS, RULES)])
    for step in range(1, 301):
        sinks.write(step, {"x": step / 300})
    assert kept(tmp_path / METRICS) and not sinks.failures
    sinks.rewind(10)
    assert not (tmp_path / CURVES).exists()
    sinks.write(11, {"x": 5.0})
    sinks.close()
    followed = FollowedMetrics(tmp_path / METRICS)
    followed.refresh(RULES)
    assert (followed.series.count, followed.series.envelopes["x"].curve().values[-1]) == (11, 5.0)
    assert not sinks.failures


def test_a_folder_that_cannot_be_written_is_read_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    written = write(path, range(1, 3001))
    path.with_name(CURVES).mkdir()
    followed = FollowedMetrics(path)
    followed.refresh(RULES, save_after_bytes=1000)
    check_ends(followed.series, written)
