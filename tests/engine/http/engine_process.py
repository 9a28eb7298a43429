"""A real engine in a process of its own, with a tiny random model, and the data to train it on."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tinker import types as tt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.cli import warm
from tests.engine.tiny import SHAPE, tiny_model

TOKEN = "test-test-test-test"
KEY = f"tml-{TOKEN}"
EOS = 2
VOCAB: int = SHAPE["vocab_size"]
FIRST_WORD = 259
"""Tokens from here on are words; those before are bytes and markers."""


class Answer(NamedTuple):
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Server(NamedTuple):
    process: warm.WarmProcess
    url: str
    state_dir: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """A polite end; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def ask(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> Answer:
        """Plain HTTP, without the SDK."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent = {"X-API-Key": KEY, **{name.replace("_", "-"): value for name, value in headers.items()}}
        request = urllib.request.Request(f"{self.url}{path}", data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read())

    def post(self, path: str, body: Any) -> Any:
        answer = self.ask("POST", f"/api/v1/{path}", body)
        assert answer.status == 200, answer
        return answer.json()

    def metric(self, name: str) -> float:
        text = self.ask("GET", "/metrics").body.decode()
        typed, helped = (set(re.findall(rf"^# {word} (\S+) \S", text, re.M)) for word in ("TYPE", "HELP"))
        assert typed == helped, "every metric has a meaning"
        found = re.search(rf"^hermes_engine_{name} (\S+)$", text, re.M)
        assert found, text
        return float(found[1])


def launch(model: Path | str, state_dir: Path, *arguments: str, **variables: str) -> Server:
    """Returns when it says that it is ready."""
    kept = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH")
        if name in os.environ
    }
    command = ["engine", "serve", "--model", str(model), "--port", "0"]
    command += ["--device", "cpu", "--dtype", "float32", "--state-dir", str(state_dir), *arguments]
    environment = {**kept, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **variables}
    process = warm.start(command, environment)
    assert process.stdout is not None
    try:
        announced = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert announced, process.wait()
    except BaseException:
        process.kill()  # whoever waited for it is gone
        raise
    url = announced[0].replace("0.0.0.0", "127.0.0.1")
    return Server(process, url, state_dir)


def worker_pids(server: Server) -> list[int]:
    """The children of the server that are workers, in the order of their start."""
    tasks = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    pids = sorted({int(pid) for task in tasks for pid in task.read_text().split()})
    return [pid for pid in pids if b"replicas.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def make_tiny(folder: Path) -> Path:
    """A model folder with a tokenizer whose tokens are single bytes and words."""
    tiny_model("llama").save_pretrained(folder)
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": EOS}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    while len(vocabulary) < VOCAB:
        vocabulary[f"word{len(vocabulary)}"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
    return folder


def tokens(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, VOCAB, length)]


def datum(sequence: Sequence[int], **inputs: Any) -> tt.Datum:
    """Each token predicts the next; weights 1 unless other inputs are given."""
    targets = list(sequence[1:])
    given = inputs or {"weights": [1.0] * len(targets)}
    return tt.Datum(
        model_input=tt.ModelInput.from_ints(list(sequence[:-1])),
        loss_fn_inputs={"target_tokens": targets, **given},
    )


def batch(size: int = 3, length: int = 9, seed: int = 0) -> list[tt.Datum]:
    return [datum(tokens(length + index, seed * 1000 + index)) for index in range(size)]


def prompt(length: int = 6, seed: int = 0) -> tt.ModelInput:
    return tt.ModelInput.from_ints(tokens(length, seed))


def logprobs(output: tt.ForwardBackwardOutput) -> list[np.ndarray[Any, Any]]:
    return [np.array(one["logprobs"].tolist()) for one in output.loss_fn_outputs]
