"""Marks for tests of what not every processor has."""

from __future__ import annotations

import pytest
import torch

from hermes.engine.model.cpu_prepacked import has_bf16, has_layout

needs_layout = pytest.mark.skipif(not has_layout(torch.float32), reason="no layout of this CPU's own")
needs_bf16 = pytest.mark.skipif(
    not has_bf16(), reason="this CPU has no instructions for bf16, and would take minutes"
)
