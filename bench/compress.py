"""How fast the compressor is, how much memory it takes and what it keeps; hermes-agent beside it.

    python bench/compress.py                                        ours, on synthetic rows
    python bench/compress.py --record 20                            on rows recorded by the real agent
    python bench/compress.py --rows recorded.jsonl                  on rows of your own
    python bench/compress.py --hermes-agent-python PATH --hermes-agent-rows 20

The synthetic rows are coding sessions of an agent: 24 tool calls whose outputs are listings, source and
logs, in which later calls use paths and ids that earlier outputs state. PATH is the interpreter of an
environment with `hermes-agent` 0.19.0; its summaries come from an instant server on the loopback interface,
ours need none. Recorded rows come from `hermes batch` with a scripted model whose calls really run: it reads
source files of the Python installation.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORDS = re.findall(
    r"\w+",
    "total index buffer request handler cache value token stream parser worker queue result error config "
    "module update return import assert raise yield column record writer reader store path client server",
)


def synthetic_row(number: int, exchanges: int = 24, lines: int = 48) -> dict[str, Any]:
    """One session. The same number gives the same row on every machine."""
    rng = random.Random(number)
    files = [f"src/{rng.choice(WORDS)}/{rng.choice(WORDS)}_{n}.py" for n in range(exchanges + 1)]
    ids = [f"{rng.getrandbits(40):010x}" for _ in range(exchanges + 1)]
    turns = [
        {"from": "system", "value": "You are a coding agent. " + _prose(rng, 300)},
        {"from": "human", "value": f"The job {ids[0]} fails in {files[0]}. Find out why and repair it."},
    ]
    for n in range(exchanges):
        call = {"name": "terminal", "arguments": {"command": f"cat {files[n]} && grep -n {ids[n]} run.log"}}
        thought = _prose(rng, 60)
        turns.append({"from": "gpt", "value": f"<think>\n{thought}\n</think>\n" + _call(call)})
        output = _output(rng, lines, files[n + 1], ids[n + 1])
        result = {"tool_call_id": f"call_{n}", "name": "terminal", "content": output}
        turns.append({"from": "tool", "value": f"<tool_response>\n{json.dumps(result)}\n</tool_response>"})
    turns.append({"from": "gpt", "value": f"The cause was {ids[-1]} in {files[-1]}; it is repaired."})
    return {"id": f"bench-{number:05}", "prompt_index": number, "conversations": turns, "completed": True}


def _call(call: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def _prose(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def _output(rng: random.Random, lines: int, file: str, identity: str) -> str:
    """Code, log lines and a listing; somewhere in it the next file and id."""
    made = []
    for number in range(lines):
        a, b, c = (rng.choice(WORDS) for _ in range(3))
        size, day = rng.randrange(10**6), number % 28 + 1
        kinds = (
            f"    {a}_{b} = self.{c}({number}, {rng.random():.4f})",
            f"2026-11-{day:02} 10:{number % 60:02}:07 INFO {a}: {b} {c} took {size % 9973} ms",
            f"def {a}_{b}(self, {c}: int) -> None:",
            f"-rw-r--r-- 1 root root {size:>8} {a}/{b}_{c}.txt",
        )
        made.append(rng.choice(kinds))
    made[rng.randrange(lines)] = f"2026-11-15 ERROR {identity}: see {file}"
    return "\n".join(made)


def write_rows(path: Path, count: int) -> None:
    with path.open("w") as file:
        for number in range(count):
            file.write(json.dumps(synthetic_row(number)) + "\n")


def record_rows(home: Path, count: int, calls: int = 24) -> Path:
    """A batch run of the real agent, whose scripted model reads one source file after the other."""
    sys.path.insert(0, str(ROOT))
    from tests.fakes.provider import FakeProvider, Reply, text, tool_calls

    library = sorted(Path(os.__file__).parent.glob("[a-z]*.py"))

    def answer(body: dict[str, Any]) -> Reply:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        first = int(str(body["messages"]).partition("number ")[2].split(" ")[0])
        if turn >= calls:
            return text("That is all there is to see.", reasoning="Every file was read.")
        file = library[(first * 7 + turn) % len(library)]
        command = f"echo {library[(first * 7 + turn + 1) % len(library)].name}; head -c 5200 {file}"
        return tool_calls([("terminal", {"command": command})], reasoning=f"Now {file.name}. " * 6)

    tasks = home / "tasks.jsonl"
    tasks.write_text(
        "".join(json.dumps({"prompt": f"Read from number {n} on."}) + "\n" for n in range(count))
    )
    with FakeProvider(answer) as provider:
        command = [sys.executable, "-m", "hermes", "batch", "--dataset-file", str(tasks), "--run-name", "rec"]
        command += ["--model", "m", "--base-url", provider.base_url, "--toolsets", "terminal", "--json"]
        command += ["--max-turns", str(calls + 2), "--num-workers", "2"]
        env = {**os.environ, "HOME": str(home), "HERMES_HOME": str(home)}
        subprocess.run(command, env=env, cwd=home, check=True, capture_output=True)
    return home / "data" / "rec" / "trajectories.jsonl"


class Memory(threading.Thread):
    """The largest resident set of one process, and of it and its children together."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self.peak_mb = self.peak_all_mb = 0.0

    def run(self) -> None:
        while not self._over.wait(0.05):
            sizes = [_rss_mb(pid) for pid in (self._pid, *_children(self._pid))]
            self.peak_mb = max(self.peak_mb, *sizes)
            self.peak_all_mb = max(self.peak_all_mb, sum(sizes))

    def stop(self) -> None:
        self._over.set()
        self.join()


def _children(pid: int) -> list[int]:
    try:
        own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in own]


def _rss_mb(pid: int) -> float:
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def measure(what: str, command: list[str], env: dict[str, str], rows: int) -> dict[str, Any]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile("w+") as said:
        started_s = time.monotonic()
        process = subprocess.Popen(command, env=env, stdout=said, stderr=said, cwd=env["HOME"])
        memory = Memory(process.pid)
        memory.start()
        code = process.wait()
        wall_s = time.monotonic() - started_s
        memory.stop()
        said.seek(0)
        if code not in (0, 1):
            raise SystemExit(f"{what} failed with {code}:\n{said.read()[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "what": what,
        "rows": rows,
        "wall_s": round(wall_s, 2),
        "rows_per_s": round(rows / wall_s, 2),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "peak_mb_one_process": round(memory.peak_mb),
        "peak_mb_all": round(memory.peak_all_mb),
    }


def ours(rows: Path, count: int, target: int, home: Path, tokenizer: str) -> dict[str, Any]:
    output = home / "ours.jsonl"
    command = [sys.executable, "-m", "hermes", "compress", "--input", str(rows), "--output", str(output)]
    command += ["--target-max-tokens", str(target), "--tokenizer", tokenizer, "--json"]
    result = measure(
        "ours, fold", command, {**os.environ, "HOME": str(home), "HERMES_HOME": str(home)}, count
    )
    figures = json.loads((home / "ours_metrics.json").read_text())
    return {**result, **kept(rows, output), "tokens_before": figures["tokens"]["total_before"]}


def hermes_agent(
    python: str, rows: Path, count: int, target: int, home: Path, tokenizer: str
) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT))
    from tests.fakes.provider import FakeProvider, text

    with FakeProvider(lambda _: text("[CONTEXT SUMMARY]: the agent read some files and logs.")) as provider:
        config = home / "old.yaml"
        config.write_text(
            json.dumps(
                {
                    "tokenizer": {"name": tokenizer, "trust_remote_code": False},
                    "compression": {"target_max_tokens": target, "summary_target_tokens": 750},
                    "summarization": {"model": "m", "base_url": provider.base_url, "api_key_env": "OLD_KEY"},
                }
            )
        )
        output = home / "old.jsonl"
        command = [python, "-m", "trajectory_compressor", f"--input={rows}", f"--output={output}"]
        env = {**os.environ, "HOME": str(home), "HERMES_HOME": str(home), "OLD_KEY": "unused"}
        result = measure("hermes-agent", [*command, f"--config={config}"], env, count)
    return {**result, **kept(rows, output)}


def kept(rows: Path, output: Path) -> dict[str, Any]:
    """Share of the tool calls and of the answers' text that the result still has, the same way for both."""
    before, after = list(_decisions(rows)), list(_decisions(output))
    there = sum(sum(each in set(new) for each in old) for old, new in zip(before, after, strict=True))
    return {"decisions_kept": round(there / max(1, sum(map(len, before))), 4), "rows_written": len(after)}


def _decisions(path: Path) -> Iterator[list[str]]:
    """What the assistant said and called in each row, thinking left out."""
    for line in path.read_text("utf-8").splitlines():
        turns = json.loads(line)["conversations"]
        yield [
            re.sub(r"<think>.*?</think>\s*", "", turn["value"], flags=re.DOTALL).strip()
            for turn in turns
            if turn["from"] == "gpt"
        ]


def bundled_tokenizer() -> str:
    """The folder of the bundled model, which both can read."""
    from hermes.config.paths import home
    from hermes.models.local.bundled import prepare

    return str(prepare(home()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="synthetic rows")
    parser.add_argument("--rows", type=Path, help="rows to use instead")
    parser.add_argument("--record", type=int, metavar="COUNT", help="record rows with the real agent instead")
    parser.add_argument("--target-max-tokens", type=int, default=8000)
    parser.add_argument("--tokenizer", metavar="DIR", help="default: the bundled model's")
    parser.add_argument("--hermes-agent-python", metavar="PATH")
    parser.add_argument("--hermes-agent-rows", type=int, default=50, help="it takes its time")
    options = parser.parse_args()
    tokenizer = options.tokenizer or bundled_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        rows = options.rows or home / "rows.jsonl"
        if options.record:
            rows = record_rows(home, options.record)
        elif options.rows is None:
            write_rows(rows, options.count)
        lines = rows.read_text("utf-8").splitlines(keepends=True)
        results = [ours(rows, len(lines), options.target_max_tokens, home, tokenizer)]
        if options.hermes_agent_python:
            some = home / "some.jsonl"
            some.write_text("".join(lines[: options.hermes_agent_rows]))
            count = min(len(lines), options.hermes_agent_rows)
            results.append(
                hermes_agent(
                    options.hermes_agent_python, some, count, options.target_max_tokens, home, tokenizer
                )
            )
        load = round(os.getloadavg()[0], 1)
        print(json.dumps({"cores": os.cpu_count(), "load": load, "runs": results}, indent=2))


if __name__ == "__main__":
    main()
