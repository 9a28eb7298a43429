"""How long OpenMP's threads spin, as OpenMP itself says it when it is loaded."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

FEW = "1000" if (os.cpu_count() or 1) <= 2 else "5000"

LOAD = """
import os
before = dict(os.environ)
from hermes.models.local_torch import import_torch
import_torch()
assert os.environ == before
import torch
"""


def spins(**variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    told = {**kept, "OMP_DISPLAY_ENV": "VERBOSE", **variables}
    done = subprocess.run([sys.executable, "-c", LOAD], env=told, capture_output=True, text=True, check=True)
    said = re.search(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)
    assert said, done.stderr
    return said[1]


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings another OpenMP there")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, FEW),
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "0"),
    ],
)
def test_a_few_spins_and_no_trace_of_it_unless_the_user_says_otherwise(
    variables: dict[str, str], expected: str
) -> None:
    assert spins(**variables) == expected
