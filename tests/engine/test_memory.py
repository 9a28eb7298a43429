"""What a long batch costs in memory, measured as the peak of a real process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_a_long_batch_needs_a_fraction_of_the_naive_memory_and_less_when_recomputed() -> None:
    command = [sys.executable, "-m", "tests.engine.peak"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    peaks = json.loads(done.stdout)
    assert peaks["kept"] < 0.4 * peaks["naive"], peaks
    assert peaks["recomputed"] < 0.7 * peaks["kept"], peaks
