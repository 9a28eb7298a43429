"""Runs tinker-cookbook's own training loops, unmodified, against `hermes engine serve`: `make compat`.

    python scripts/compat [--folder .compat] [--replicas N] [--only WORD …]

The cookbook pins an older transformers than ours, so it gets an environment of its own in the folder, where
the model, the engine's checkpoints and every log stay, too. Each loop runs a few steps on the bundled model;
its own metrics, the checkpoints that the engine then lists and samples from, and a resume after `kill -9` of
client and engine are judged. Prints a table, writes results.json, and fails when a loop does. What it found
is recorded in docs/compat-cookbook.md; nothing here is a benchmark.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import plan
from checks import continued, on_policy
from parts import Engine, cookbook_python, environment, versions
from plan import Loop, Place

KEY = "tml-local"
PROBE = list(range(500, 532))
LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Result:
    loop: str
    command: str
    """recipe: the cookbook's own command; loop: its loop, configured field by field."""
    steps: int
    seconds: float
    passed: bool
    seen: str


@dataclass(frozen=True, slots=True)
class Bench:
    """One run of the checks: the engine, the cookbook's environment and where everything is."""

    folder: Path
    python: Path
    engine: Engine
    place: Place

    def log_path(self, name: str) -> Path:
        return self.folder / "logs" / re.sub(r"[^a-zA-Z0-9]+", "-", name)

    def start(self, command: tuple[str, ...], log_path: Path, out: IO[bytes]) -> subprocess.Popen[bytes]:
        variables = environment(self.folder) | {"TINKER_BASE_URL": self.engine.url, "TINKER_API_KEY": KEY}
        line = [str(self.python), *command, f"log_path={log_path}"]
        return subprocess.Popen(line, stdout=out, stderr=out, env=variables, stdin=subprocess.DEVNULL)

    def run(self, command: tuple[str, ...], log_path: Path) -> list[dict[str, Any]]:
        """The metrics that the loop added to its own log."""
        before = len(_lines(log_path / "metrics.jsonl"))
        printed = log_path.with_suffix(".txt")
        with printed.open("ab") as out:
            process = self.start(command, log_path, out)
            try:
                code = process.wait(LIMIT_S)
            finally:
                process.kill()
        assert code == 0, f"exit code {code}: {_last_line(printed)}"
        return _lines(log_path / "metrics.jsonl")[before:]


def main() -> None:
    parser = argparse.ArgumentParser(description="tinker-cookbook's loops against the engine")
    parser.add_argument(
        "--folder", type=Path, default=Path(".compat"), help="environment, model, logs, results"
    )
    parser.add_argument("--only", nargs="*", default=[], help="loops whose name contains one of these words")
    parser.add_argument("--replicas", type=int, default=1, help="worker processes of the engine")
    asked = parser.parse_args()
    folder: Path = asked.folder.absolute()
    for fresh in ("logs", "state", "data"):
        shutil.rmtree(folder / fresh, ignore_errors=True)
        (folder / fresh).mkdir(parents=True)
    with _bench(folder, asked.replicas) as bench:
        results = [_judged(*case) for case in _cases(bench, asked.only)]
    used = versions(bench.python)
    rows = [asdict(result) for result in results]
    recorded = {"versions": used, "replicas": asked.replicas, "results": rows}
    (folder / "results.json").write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    _say(" ".join(f"{name} {version}" for name, version in used.items()) + "\n")
    sys.exit(0 if results and all(result.passed for result in results) else 1)


@contextlib.contextmanager
def _bench(folder: Path, replicas: int) -> Iterator[Bench]:
    python = cookbook_python(folder / "venv")
    for name, rows in plan.data().items():
        (folder / "data" / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    engine = Engine(folder, replicas)
    try:
        engine.start()
        model = folder / "home" / "models" / "hermes--smollm2"
        script = Path(__file__).with_name("loop.py")
        yield Bench(folder, python, engine, Place(str(model), engine.url, folder / "data", script))
    finally:
        engine.stop()


Case = tuple[str, str, int, Callable[[], str]]
"""Name, kind of command, steps, and what runs and judges it."""


def _cases(bench: Bench, only: list[str]) -> Iterator[Case]:
    def wanted(name: str) -> bool:
        return not only or any(word in name for word in only)

    first, *others = plan.loops(bench.place)
    if any(wanted(name) for name in (first.name, "distillation", "resume, supervised")):
        yield _case(bench, first)
    yield from (_case(bench, loop) for loop in others if wanted(loop.name))
    taught = _checkpoints(bench.log_path(first.name))
    if wanted("distillation") and taught:
        loops = plan.distillations(bench.place, taught[-1]["sampler_path"])
        yield from (_case(bench, loop) for loop in loops)
    if wanted("resume, supervised"):
        steps = plan.RESUMED_STEPS - plan.RESUME_AT
        yield "resume, supervised", "recipe", steps, lambda: _resume_supervised(bench, first)
    if wanted("resume, RL"):
        yield "resume, RL", "recipe", 2, lambda: _resume_rl(bench)


def _case(bench: Bench, loop: Loop) -> Case:
    return loop.name, "recipe" if loop.from_recipe else "loop", loop.steps, lambda: _run(bench, loop)


def _judged(name: str, command: str, steps: int, run: Callable[[], str]) -> Result:
    _say(f"{name:<30} ")
    began = time.monotonic()
    try:
        passed, seen = True, run()
    except (AssertionError, OSError, KeyError, IndexError, subprocess.TimeoutExpired) as error:
        passed, seen = False, f"{type(error).__name__}: {error}"
    result = Result(name, command, steps, round(time.monotonic() - began, 1), passed, seen)
    _say(f"{'ok' if passed else 'FAILED':<7} {steps} steps {result.seconds:6.1f} s  {seen}\n")
    return result


def _run(bench: Bench, loop: Loop) -> str:
    log_path = bench.log_path(loop.name)
    metrics = bench.run(loop.command, log_path)
    assert len(metrics) == loop.steps, f"{len(metrics)} steps are recorded, not {loop.steps}"
    seen = loop.check(metrics)
    return f"{seen}; {_usable(bench, log_path)}"


def _usable(bench: Bench, log_path: Path) -> str:
    """The run's checkpoints are there and sample, and its last weights are not the base model's."""
    import tinker

    records = _checkpoints(log_path)
    kept = [one for one in records if not one.get("rolling")]
    run = kept[-1]["state_path"].removeprefix("tinker://").split("/")[0]
    rest = tinker.RestClient(base_url=bench.engine.url, api_key=KEY)
    listed = {one.tinker_path for one in rest.list_checkpoints(run).result().checkpoints}
    named = {one[kind] for one in kept for kind in ("state_path", "sampler_path")}
    assert {path for path in named if f"//{run}/" in path} == listed, f"recorded {named}, listed {listed}"
    with tinker.ServiceClient(base_url=bench.engine.url, api_key=KEY) as client:
        prompt = tinker.ModelInput.from_ints(PROBE)
        untrained = client.create_sampling_client(base_model=bench.place.model)
        trained = client.create_sampling_client(model_path=kept[-1]["sampler_path"])
        base, last = (sampler.compute_logprobs(prompt).result() for sampler in (untrained, trained))
    change = max(abs((one or 0) - (other or 0)) for one, other in zip(base, last, strict=True))
    assert change > 1e-4, f"the trained model answers as the base model does (change {change})"
    return f"{len(named)} checkpoints, probe moved by {change:.3f}"


def _resume_supervised(bench: Bench, loop: Loop) -> str:
    """As if the client had died right after its first checkpoint, and the engine with it.

    The cookbook saves after the batch that it submitted ahead, and replays from the one before: what it calls
    step RESUME_AT comes after RESUME_AT + 2 updates.
    """
    source, log_path = bench.log_path(loop.name), bench.log_path("resume, supervised")
    whole = _lines(source / "metrics.jsonl")
    log_path.mkdir()
    at = [one for one in _checkpoints(source) if one["name"] == f"{plan.RESUME_AT:06d}"]
    (log_path / "checkpoints.jsonl").write_text(json.dumps(at[0]) + "\n", encoding="utf-8")
    bench.engine.kill()
    bench.engine.start()
    resumed = bench.run((*loop.command, "behavior_if_log_dir_exists=resume"), log_path)
    steps = [one["step"] for one in resumed]
    assert steps == list(range(plan.RESUME_AT, plan.RESUMED_STEPS)), f"steps {steps}"
    seen = continued(whole[plan.RESUME_AT + 2 :], resumed)
    return f"steps {steps[0]} to {steps[-1]}, engine killed between, {seen}; {_usable(bench, log_path)}"


def _resume_rl(bench: Bench) -> str:
    """Client and engine are killed while they train."""
    log_path = bench.log_path("resume, RL")
    with log_path.with_suffix(".txt").open("ab") as out:
        client = bench.start(plan.math_rl(bench.place, steps=50), log_path, out)
        while client.poll() is None and not _checkpoints(log_path):
            time.sleep(0.2)
        client.send_signal(signal.SIGKILL)
        assert client.wait() == -signal.SIGKILL, "the client ended before its first checkpoint"
    bench.engine.kill()
    bench.engine.start()
    at = _checkpoints(log_path)[-1]["batch"]
    command = plan.math_rl(bench.place, "behavior_if_log_dir_exists=resume", steps=at + 2)
    resumed = bench.run(command, log_path)
    assert [one["progress/batch"] for one in resumed] == [at, at + 1], f"resumed at {resumed}"
    return f"killed with the engine after step {at}; {on_policy(resumed)}; {_usable(bench, log_path)}"


def _checkpoints(log_path: Path) -> list[dict[str, Any]]:
    return _lines(log_path / "checkpoints.jsonl")


def _lines(file: Path) -> list[dict[str, Any]]:
    """A line that is still being written does not count."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _last_line(file: Path) -> str:
    lines = [line for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"{lines[-1] if lines else 'nothing printed'} ({file})"


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
