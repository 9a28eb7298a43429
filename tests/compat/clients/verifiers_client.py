"""verifiers: an episode of its example `echo-v1` by its own client. Runs where no Hermes is."""

import asyncio
import importlib.metadata
import os
import sys
from pathlib import Path

url, name, examples, folder = sys.argv[1:5]
sys.path.insert(0, examples)
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ["PYTHONPATH"] = examples
os.chdir(folder)

import verifiers.v1 as vf  # noqa: E402


async def main() -> None:
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    env = vf.load_environment(vf.resolve_env_config({"taskset": {"id": "echo-v1"}, "agent": agent}))
    context = vf.ModelContext(
        model=name,
        client=vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY"),
        sampling=vf.SamplingConfig(temperature=0.7, max_tokens=16),
    )
    async with env.serving():
        (slot,) = env.slots(next(iter(env.taskset)))
        episode = await env.run_slot(slot, context)
    assert episode.ok, [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    (trace,) = episode.traces
    assert trace.usage is not None and trace.usage.completion_tokens > 0
    print("EPISODE ok", trace.reward, repr(trace.last_reply))


asyncio.run(main())
print("OK", importlib.metadata.version("verifiers"))
