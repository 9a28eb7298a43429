"""The OpenAI face over somebody else's weights: it must not need what only an engine of our own needs."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from hermes.engine.server import app, policies, state
from hermes.engine.server.openai import routes
from hermes.engine.server.tinker import routes
print("imported")
"""


def test_the_face_and_the_state_behind_it_can_be_imported_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True)
    assert done.stdout == "imported\n", done.stderr
