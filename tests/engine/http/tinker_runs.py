"""Training and downloads over the Tinker API."""

from __future__ import annotations

import urllib.error
import urllib.request

import tinker
from tinker import types as tt

from tests.engine.http.engine_process import batch

STEP = tt.AdamParams(learning_rate=1e-2)


def steps(training: tinker.TrainingClient, numbers: range) -> list[float]:
    """One optimizer step a number; the losses before each."""
    losses = []
    for number in numbers:
        output = training.forward_backward(batch(2, seed=number), "cross_entropy").result()
        training.optim_step(STEP).result()
        losses.append(output.metrics["loss:sum"])
    return losses


def fetched(urls: dict[str, str]) -> dict[str, bytes]:
    """As a downloader does it: a plain GET, no header of ours."""
    files = {}
    for name, url in urls.items():
        with urllib.request.urlopen(url, timeout=30) as answer:
            files[name] = answer.read()
    return files
