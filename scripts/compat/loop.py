"""Runs one training loop of tinker-cookbook, in the cookbook's own environment.

    python loop.py [--processes N] MODULE field=value …

MODULE is the loop's module (tinker_cookbook.rl.train, say); the rest builds its `Config` the way the
cookbook's recipes do, with chz. A recipe lets some of a loop's fields be set; here all of them can be, and
nothing else is added. With --processes the rollouts of rl.train run in that many spawned processes.
"""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from typing import Any


def main() -> None:
    chz = import_module("chz")
    more: dict[str, Any] = {}
    if sys.argv[1] == "--processes":
        spawn = multiprocessing.get_context("spawn")
        more["rollout_executor"] = ProcessPoolExecutor(int(sys.argv[2]), mp_context=spawn)
        del sys.argv[1:3]
    loop = import_module(sys.argv.pop(1))
    running = loop.main(chz.entrypoint(loop.Config), **more)
    if inspect.isawaitable(running):
        asyncio.run(_finish(running))


async def _finish(running: Any) -> None:
    await running


if __name__ == "__main__":
    main()
