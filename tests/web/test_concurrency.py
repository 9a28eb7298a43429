"""Capture by eight processes while two people rate and a dashboard is open: no lock error, no rating lost.

The program that measures it (`bench/web_concurrent.py`) fails if a request or a rating does.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "web_concurrent.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pace_ms", ["50", "0"])
def test_writers_raters_and_a_dashboard_at_once(pace_ms: str) -> None:
    command = [sys.executable, str(BENCH), "--seconds", "40", "--pace-ms", pace_ms]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rated = re.search(r"failed requests: 0; ratings sent (\d+), in the store (\d+)", done.stdout)
    assert rated and int(rated[1]) == int(rated[2]) > 0
    assert re.search(r"8 processes captured [1-9]", done.stdout)
