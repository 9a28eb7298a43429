"""The engine's process returns what it has freed, so that it does not grow with its use."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.engine_memory import process_memory

from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.weights import Policy
from hermes.engine.memory import CHECK_S, GROWTH_BYTES, FreedMemory
from tests.engine.tiny import tiny_model

ROOT = Path(__file__).parents[2]


def test_memory_is_returned_after_a_growth_and_not_before() -> None:
    sizes = {"rss": 10 * GROWTH_BYTES}
    trims: list[int] = []

    def trim() -> None:
        trims.append(sizes["rss"])
        sizes["rss"] -= GROWTH_BYTES // 2

    freed = FreedMemory(lambda: sizes["rss"], trim)
    freed.trim_if_grown()
    sizes["rss"] += GROWTH_BYTES - 1
    freed.trim_if_grown()
    assert not trims
    sizes["rss"] += 1
    freed.trim_if_grown()
    assert len(trims) == 1
    freed.trim_if_grown()
    assert len(trims) == 1, "what is in use now is the new floor"
    sizes["rss"] -= 5 * GROWTH_BYTES
    freed.trim_if_grown()
    sizes["rss"] += GROWTH_BYTES
    freed.trim_if_grown()
    assert len(trims) == 2, "a process that has shrunk may not grow to its old size unnoticed"


def test_a_busy_engine_looks_only_every_few_seconds() -> None:
    looks: list[int] = []

    def rss_bytes() -> int:
        looks.append(1)
        return 0

    freed = FreedMemory(rss_bytes, lambda: None)
    begun, start_s = len(looks), freed._checked_s
    for step in range(100):
        freed.check(start_s + step * CHECK_S / 100)
    assert len(looks) == begun
    freed.check(start_s + CHECK_S)
    assert len(looks) > begun


@pytest.mark.skipif(sys.platform != "linux", reason="the figures are glibc's and those of /proc")
def test_blocks_freed_between_others_are_returned_to_the_system() -> None:
    """In a process of its own: every second block of 64 KiB is freed, which leaves holes that glibc keeps."""
    script = """
import ctypes
from bench.engine_memory import process_memory
from hermes.engine.memory import FreedMemory
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
freed = FreedMemory()
size = 64 << 10
blocks = [libc.malloc(size) for _ in range(8 << 10)]
for block in blocks:
    ctypes.memset(block, 1, size)
full = process_memory()
for block in blocks[::2]:
    libc.free(block)
holes = process_memory()
freed.trim_if_grown()
after = process_memory()
assert holes.rss_bytes > full.rss_bytes - (32 << 20), (full, holes)
assert holes.heap_free_bytes - full.heap_free_bytes > 250 << 20, (full, holes)
assert after.rss_bytes < full.rss_bytes - (200 << 20), (full, after)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_figures_of_this_process_are_plausible() -> None:
    memory = process_memory()
    assert memory.rss_bytes > 1 << 20
    assert memory.rss_bytes < 1 << 40


def test_deleted_adapters_and_policies_leave_nothing_behind(tmp_path: Path) -> None:
    from bench.engine_memory import Load

    tiny_model("llama").save_pretrained(tmp_path)
    engine = Engine(EngineOptions(str(tmp_path), "cpu", "float32", kv_bytes=8 << 20))
    engine.start()
    try:
        load = Load(engine, longest=40)
        for _ in range(2):
            load.adapter()
        before = _alive()
        for _ in range(12):
            load.adapter()
        assert _alive() <= before + 2, "the compute thread may still hold the last adapter and its policy"
        assert engine.stats().adapter_bytes == engine.stats().policy_bytes == 0
    finally:
        engine.close()


def _alive() -> int:
    """Adapters and policies that something refers to."""
    gc.collect()
    return sum(type(value) in (Adapter, Policy) for value in gc.get_objects())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="the figures are glibc's and those of /proc")
def test_a_long_mixed_use_does_not_grow_the_process(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path / "model")
    command = [sys.executable, str(ROOT / "bench" / "engine_memory.py"), "--model", str(tmp_path / "model")]
    sizes = ["--adapters", "50", "--requests", "100", "--kv-gib", "0.01", "--longest", "60"]
    subprocess.run([*command, *sizes, "--json", str(tmp_path / "points.json")], check=True, cwd=ROOT)
    points = json.loads((tmp_path / "points.json").read_text())
    for part in ("adapters", "mixed"):
        rss_mb = [point["rss_mb"] for point in points if point["part"] == part]
        assert rss_mb[-1] - rss_mb[0] < 32, points
