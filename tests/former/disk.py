"""Everything that Hermes keeps on disk, as a former commit wrote it, read by whichever commit runs this file.

`b0bc33a.tar.xz` holds one of each kind, written by that commit: a home with a finished RL run (configuration,
status, metrics, training state, engine checkpoints, trajectory API log) and a store with trajectories and
ratings; a batch run that was killed halfway; a trajectory API with a queue and a lease, killed; a compression
that was killed halfway. `b0bc33a.json` is what `read_everything` returned under that commit:

    PYTHONPATH=CHECKOUT python tests/former/disk.py FOLDER > b0bc33a.json

Only the command line and public HTTP APIs are used, so that the same file runs under every commit.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WRITTEN_AT = "/tmp/former/disk"
"""Where the former commit wrote them; its files name their neighbours by absolute paths."""
KEY = "tml-former"
PROMPT = [5, 6, 7, 8]


def unpack(folder: Path, archive: Path = HERE / "b0bc33a.tar.xz") -> Path:
    """The files under `folder`, with the absolute paths in them changed to where they are now."""
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    for path in folder.rglob("*"):
        if path.suffix in (".json", ".yaml"):
            path.write_text(path.read_text().replace(WRITTEN_AT, str(folder)))
    return folder


def read_everything(root: Path) -> dict[str, Any]:
    """What the commands say about the files; continues what was interrupted. Changes the folder."""
    (run,) = (path.name for path in (root / "home" / "runs").iterdir() if path.is_dir())
    return {
        "store": _store(root),
        "run": _run(root, run),
        "checkpoints": _checkpoints(root, run),
        "api": _api(root),
        "batch": _batch(root),
        "compress": _compress(root),
    }


def hermes(home: Path, *arguments: str, exit_code: int = 0) -> str:
    """Standard output of a command that must end with the exit code; its errors if that is not 0."""
    completed = subprocess.run(
        [sys.executable, "-m", "hermes", *arguments],
        env=_environ(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == exit_code, (arguments, completed.stdout[-2000:], completed.stderr[-2000:])
    return completed.stderr if exit_code else completed.stdout


def _environ(home: Path) -> dict[str, str]:
    inherited = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH")
    variables = {name: os.environ[name] for name in inherited if name in os.environ}
    return {**variables, "HERMES_HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _store(root: Path) -> dict[str, Any]:
    home = root / "home"
    listed = json.loads(hermes(home, "trajectories", "list", "--limit", "100", "--json"))
    ids = sorted(row["id"] for row in listed)
    output = root / "records.jsonl"
    hermes(home, "export", "--format", "record", "--output", str(output))
    records = sorted((json.loads(line) for line in output.read_text().splitlines()), key=json.dumps)
    return {"ids": ids, "records": records}


def _run(root: Path, run: str) -> dict[str, Any]:
    home = root / "home"
    results = json.loads(hermes(home, "rl", "results", run, "--json"))
    status = json.loads(hermes(home, "rl", "status", run, "--json"))
    return {"steps": results["steps"], "history": results["history"], "status": status["status"]}


def _checkpoints(root: Path, run: str) -> dict[str, Any]:
    """Logprobs of a prompt by each sampler checkpoint, and a step of training from the saved optimizer."""
    import tinker

    state = root / "home" / "runs" / run / "engine"
    (adapter,) = (path.name.replace("~", ":") for path in state.iterdir() if path.is_dir())
    serve = ("engine", "serve", "--model", str(root / "model"), "--port", "0", "--device", "cpu")
    with serving(root / "home", *serve, "--dtype", "float32", "--state-dir", str(state)) as url:
        service = tinker.ServiceClient(base_url=url, api_key=KEY)
        prompt = tinker.ModelInput.from_ints(PROMPT)
        logprobs = {}
        for step in ("step-2", "step-4"):
            sampler = service.create_sampling_client(f"tinker://{adapter}/sampler_weights/{step}")
            values = sampler.compute_logprobs(prompt).result()
            logprobs[step] = [None if value is None else round(value, 4) for value in values]
        training = service.create_training_client_from_state_with_optimizer(
            f"tinker://{adapter}/weights/step-4"
        )
        targets = {"target_tokens": PROMPT[1:], "weights": [1.0] * (len(PROMPT) - 1)}
        datum = tinker.Datum(model_input=tinker.ModelInput.from_ints(PROMPT[:-1]), loss_fn_inputs=targets)
        training.forward_backward([datum], "cross_entropy").result()
        training.optim_step(tinker.AdamParams(learning_rate=0.01)).result()
        after = training.forward([datum], "cross_entropy").result()
        loss = round(after.metrics["loss:sum"], 3)
    return {"logprobs": logprobs, "loss_after_a_step": loss}


def _api(root: Path) -> dict[str, Any]:
    home = root / "api"
    with serving(home, "api", "--port", "0", "--state-dir", str(home / "api")) as url:
        status = _get(f"{url}/status")
        leased = _get(f"{url}/batch?lease_id=1&lease_s=600")
        fresh = _get(f"{url}/batch?lease_s=600")
    return {
        "step": status["current_step"],
        "queue": status["queue_size"],
        "outstanding": status["leases"]["outstanding"],
        "leased": [group["tokens"] for group in leased["batch"]],
        "redelivered": leased["redelivered"],
        "fresh": [group["tokens"] for group in fresh["batch"]],
    }


def _batch(root: Path) -> dict[str, Any]:
    """Continues the run; the journal's nine samples must not be requested again."""
    home = root / "batch"
    requests: list[str] = []
    with _provider(requests) as base_url:
        command = ("batch", "--dataset-file", str(home / "tasks.jsonl"), "--run-name", "run", "--json")
        folder = ("--output-dir", str(home / "data"), "--toolsets", "math", "--num-workers", "2")
        command = (*command, *folder, "--model", "m", "--base-url", base_url)
        refusal = hermes(home, *command, exit_code=2)
        hermes(home, *command, "--accept-changes")
    lines = (home / "data" / "run" / "trajectories.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    changed = re.findall(r"(\w+): \S+ -> ", refusal)
    return {
        "rows": len(rows),
        "columns": sorted(rows[0]),
        "requested": sorted(set(requests)),
        "changed": changed,
    }


def _compress(root: Path) -> dict[str, Any]:
    output = root / "compress" / "out.jsonl"
    command = ("compress", "--input", str(root / "compress" / "rows.jsonl"), "--output", str(output))
    hermes(
        root / "home",
        *command,
        "--target-max-tokens",
        "12000",
        "--tokenizer",
        str(root / "model"),
        "--resume",
    )
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    return {"rows": len(rows), "first": rows[0], "columns": sorted(rows[0])}


@contextmanager
def serving(home: Path, *arguments: str) -> Iterator[str]:
    """The address of a server that is started for the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hermes", *arguments],
        env=_environ(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if address := re.search(r"http://[^\s/,]+:\d+", line):
                yield address[0]
                break
        else:
            raise AssertionError("".join(lines))
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        process.wait(60)


@contextmanager
def _provider(requests: list[str]) -> Iterator[str]:
    """A chat endpoint that calls the calculator and then gives its result as the answer."""
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            last = body["messages"][-1]
            message: dict[str, Any] = {"role": "assistant", "content": f"The answer is {last['content']}."}
            if last["role"] != "tool":
                requests.append(last["content"])
                expression = {"expression": last["content"].removeprefix("Compute ")}
                function = {"name": "calculator", "arguments": json.dumps(expression)}
                message = {"role": "assistant", "content": None}
                message["tool_calls"] = [{"id": "c1", "type": "function", "function": function}]
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            reply = {"id": "r", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            payload = json.dumps({**reply, "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *arguments: Any) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        print(json.dumps(read_everything(unpack(Path(folder))), indent=1, sort_keys=True))
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
