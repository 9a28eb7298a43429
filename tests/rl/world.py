"""Real runs made small: a random model of a few thousand parameters with a tokenizer of bytes, and a home."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from hermes.config.load import load
from hermes.rl.config.resolve import Resolved, resolve, select
from hermes.rl.run import RlRun, all_runs, find_run
from tests.cli import warm
from tests.waiting import wait_until

ENVIRONMENTS = Path(__file__).parent / "environments"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer(folder: Path, longest: int = 512, words: Sequence[str] = ()) -> int:
    """Saves a tokenizer of bytes and says how many tokens it has.

    `words` are tokens that text is never encoded to, and that a model may sample all the same.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    vocabulary |= {letter: number for number, letter in enumerate([*letters, *words], start=3)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=longest,
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return len(vocabulary)


def tiny_model(folder: Path, longest: int = 512) -> Path:
    """A folder that transformers and the engine load in a moment. `longest`: context, in tokens."""
    from tests.engine.tiny import tiny_model as random_model

    sizes = {"vocab_size": tiny_tokenizer(folder, longest), "hidden_size": 32, "intermediate_size": 48}
    random_model("llama", **sizes, max_position_embeddings=longest).save_pretrained(folder)
    return folder


def make_home(home: Path, model: Path, **values: Any) -> Path:
    """A home whose runs train the model on a few steps."""
    fields = {
        "total_steps": 4,
        "steps_per_eval": 1000,
        "save_checkpoint_interval": 2,
        "max_token_trainer_length": 256,
        "lora_rank": 4,
        "learning_rate": 0.001,
        **values,
    }
    settings = {
        "model": str(model),
        "device": "cpu",
        "environments": [str(ENVIRONMENTS)],
        "values": fields,
    }
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.yaml").write_text(json.dumps({"rl": settings}))
    return home


def resolved_run(home: Path, **edits: Any) -> Resolved:
    """The configuration of a run that is not started, with these fields."""
    config = load({}, {"HERMES_HOME": str(home)})
    return resolve(config, replace(select(config, str(ENVIRONMENTS / "letters.py")), edits=edits))


def change_settings(home: Path, **changes: Any) -> None:
    """Of `rl`, as a person would, in an editor."""
    path = home / "config.yaml"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "rl": {**settings["rl"], **changes}}))


def hermes(
    home: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    environ = {**kept, "HERMES_HOME": str(home), "OMP_NUM_THREADS": "1", **(env or {})}
    done = warm.run(arguments, environ, "", None, cwd)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def answer(home: Path, *arguments: str, **more: Any) -> Any:
    """What a command says with --json."""
    done = hermes(home, *arguments, "--json", **more)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def policy_answers(
    command: Sequence[str], environ: Mapping[str, str], stop: str, number: signal.Signals = signal.SIGTERM
) -> dict[str, Any]:
    """What `policy` says when it is asked where the command announces that it serves it.

    `stop`: the line that the signal `number` makes the command print.
    """
    with TemporaryFile("w+") as errors:
        served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environ)
        reply = _answer_of_policy(served, number)
        errors.seek(0)
        assert errors.read().endswith(f"stopped; {stop}\n")
    return reply


def _answer_of_policy(served: subprocess.Popen[str], number: signal.Signals) -> dict[str, Any]:
    try:
        assert served.stdout is not None
        found = re.search(r"http://[^\s/,]+", served.stdout.readline())
        assert found is not None, "it announces no address"
        body = json.dumps({"model": "policy", "prompt": "hi", "max_tokens": 4}).encode()
        asked = urllib.request.Request(
            f"{found[0]}/v1/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=60) as told:
            said: dict[str, Any] = json.load(told)
    finally:
        served.send_signal(number)
    assert served.wait() == 0
    assert said["usage"]["completion_tokens"] > 0
    return said


def kill_runs(home: Path) -> None:
    """Kills every process of the home's runs that have not ended."""
    for run in all_runs(home):
        status = run.status()
        if status.state.ended:
            continue
        run.stop_path.touch()
        if status.supervisor is not None and status.supervisor.alive():
            os.killpg(os.getpgid(status.supervisor.pid), signal.SIGKILL)
        for part in status.processes.values():
            if part.process_id is not None and part.process_id.alive():
                os.killpg(part.process_id.pid, signal.SIGKILL)


def start_run(
    home: Path, *edits: str, environment: str = "letters", env: dict[str, str] | None = None
) -> RlRun:
    flags = [word for edit in ("group_size=4", "batch_size=8", *edits) for word in ("--set", edit)]
    started = answer(home, "rl", "start", "--env", environment, *flags, env=env)
    assert started["status"] in ("starting", "running")
    return find_run(home, started["run_id"])


def how_it_ended(run: RlRun) -> str:
    status = wait_until(lambda: run.status() if run.status().state.ended else None)
    assert status.ended_at_ms >= status.started_at_ms
    return f"{status.state.value}: {status.reason}"
