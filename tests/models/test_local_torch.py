"""How long OpenMP's threads spin, as OpenMP itself says it when it is loaded."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

LOAD = """
import os, sys
allowed = sorted(os.sched_getaffinity(0))[: int(sys.argv[1])]
os.sched_setaffinity(0, allowed)
before = dict(os.environ)
from hermes.models.local.torch_threads import import_torch
import_torch()
assert os.environ == before
import torch
"""


def spins(cores: int, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    told = {**kept, "OMP_DISPLAY_ENV": "VERBOSE", **variables}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(cores)], env=told, capture_output=True, text=True, check=True
    )
    said = re.search(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)
    assert said, done.stderr
    return said[1]


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="torch brings another OpenMP there")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "1000"),
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "0"),
    ],
)
def test_a_few_spins_on_two_cores_and_no_trace_of_it_unless_the_user_says_otherwise(
    variables: dict[str, str], expected: str
) -> None:
    assert spins(2, **variables) == expected


@pytest.mark.skipif((os.cpu_count() or 1) < 3, reason="there are no more than two cores")
def test_more_spins_on_more_cores() -> None:
    assert spins(3) == "5000"
