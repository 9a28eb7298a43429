"""Trained weights answer by their names wherever a model is named; the base model never in their place."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from hermes.engine.lora.peft import merge_peft
from hermes.engine.types import EngineUserError
from hermes.rl.process import ProcessId
from hermes.store import Reader
from tests.cli.process import failure
from tests.policies.named_home import RUN, home_with_run, write_adapter
from tests.rl.world import answer, hermes, tiny_model
from tests.waiting import wait_until

SHORT = {"HERMES_SAMPLING__MAX_TOKENS": "8", "HERMES_SAMPLING__TEMPERATURE": "0"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), 2048)


@pytest.fixture
def home(tmp_path: Path, model: Path) -> Path:
    return home_with_run(tmp_path / "home", model)


def asked(home: Path, *flags: str) -> dict[str, object]:
    words = ("-q", "Say letters.", "--system", "Say them.", "--toolsets", "none", "--json")
    done = hermes(home, *flags, *words, env=SHORT)
    told: dict[str, object] = json.loads(done.stdout)
    with Reader(home / "hermes.db") as reader:
        return {**told, "said": reader.get(str(told["trajectory_id"])).messages[-1].content}


@pytest.mark.timeout(600)
def test_a_run_and_a_promoted_policy_answer_by_name(home: Path) -> None:
    newest, older = asked(home, "--model", "run:letters"), asked(home, "--model", f"run:{RUN}@2")
    assert (newest["model"], older["model"]) == (f"{RUN}@step-4", f"{RUN}@step-2")
    assert newest["cost_usd"] == 0 and newest["said"] != older["said"], "two steps, two sets of weights"
    shown = answer(home, "trajectories", "show", str(newest["trajectory_id"]), "--raw")
    assert "tinker://01RUN/sampler_weights/step-4" in json.dumps(shown), "the path stays in the record"
    assert answer(home, "policy", "promote", RUN)["name"] == f"{RUN}@step-4"
    assert answer(home, "policy", "promote", f"{RUN}@step-2")["name"] == f"{RUN}@step-2"
    assert answer(home, "policy", "promote", f"{RUN}@step-4")["name"] == f"{RUN}@step-4"
    assert len(answer(home, "policy", "list")["policies"]) == 2, "the same weights are one policy"
    hermes(home, "config", "set", "model_aliases.mine", f"run:{RUN}")
    names = answer(home, "models")["names"]
    assert names["mine"] == f"run:{RUN}" and names["policy"] == names[f"run:{RUN}"] == f"{RUN}@step-4"
    for name in names:
        assert asked(home, "--model", name)["said"] in (newest["said"], older["said"]), name
    for slip, meant in ((RUN, f"run:{RUN}"), ("letters", f"run:{RUN}"), ("mien", "mine")):
        assert f"did you mean {meant}?" in failure(hermes(home, "--model", slip, "-q", "Hi"), 2)[1]
    for name in ("policy", f"policy:{RUN}@step-4", f"{RUN}@step-4"):
        assert asked(home, "--model", name)["said"] == newest["said"]
    assert answer(home, "policy", "promote", "previous")["name"] == f"{RUN}@step-2"
    what, how = failure(hermes(home, "--model", "policy:letters", "-q", "x"), 2)
    assert "matches 2 policies" in what and f"{RUN}@step-2" in what and "more" in how
    for name in ("run:nothing", "nothing@step-3", f"run:{RUN}@3"):
        what, _ = failure(hermes(home, "--model", name, "-q", "x"), 2)
        assert "there is no run" in what or "no checkpoint of step 3" in what


@pytest.mark.timeout(600)
def test_a_batch_starts_the_engine_that_it_needs_and_stops_it(home: Path) -> None:
    answer(home, "policy", "promote", RUN)
    tasks = home / "tasks.jsonl"
    tasks.write_text("".join(f'{{"prompt": "Say {number}."}}\n' for number in range(3)))
    words = ("batch", "--dataset-file", str(tasks), "--run-name", "r", "--output-dir", str(home / "data"))
    done = hermes(home, *words, "--model", "policy", "--num-workers", "1", "--max-turns", "1", env=SHORT)
    assert f"starting an engine that serves {RUN}@step-4" in done.stderr
    made = answer(home, "trajectories", "list", "--source", "batch")
    assert {row["model"] for row in made} == {f"{RUN}@step-4"} and len(made) == 3
    assert all(row["cost_usd"] == 0 for row in made)
    spec = json.loads((home / "data" / "r" / "run.json").read_text())
    assert (spec["model"], spec["base_url"]) == (f"{RUN}@step-4", None), "continued at whatever address"
    again = hermes(home, *words, "--model", "policy", "--num-workers", "1", "--max-turns", "1", env=SHORT)
    assert "starting an engine" not in again.stderr and again.returncode == done.returncode


@pytest.mark.timeout(600)
def test_a_server_of_a_policy_has_no_other_model(home: Path, model: Path) -> None:
    command = [sys.executable, "-m", "hermes", "rl", "serve", "--port", "0"]
    environ = {**os.environ, "HERMES_HOME": str(home)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            url = re.search(r"http://[^\s,]+", line)
            assert url is not None and line.endswith(f"model {RUN}@step-4\n")
            with urllib.request.urlopen(f"{url[0]}/v1/models", timeout=60) as listed:
                assert [card["id"] for card in json.load(listed)["data"]] == [f"{RUN}@step-4"]
            body = json.dumps({"model": str(model), "prompt": "hi", "max_tokens": 2}).encode()
            request = urllib.request.Request(
                f"{url[0]}/v1/completions", body, {"Content-Type": "application/json"}
            )
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(request, timeout=60)
            served = asked(home, "--base-url", f"{url[0]}/v1")
            here = asked(home, "--model", f"run:{RUN}")
            assert served["model"] == here["model"]
            # Later tokens may tie in bf16, and a character that is cut off is shown by one of the two only.
            assert str(served["said"])[:3] == str(here["said"])[:3] != ""
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait() == 0


_HOLD = """
import os, sys, time
from pathlib import Path
from hermes.engine.server.options import EngineServeOptions
from hermes.rl.supervise.engine_process import engine_process
from hermes.rl.supervise import ports
options = EngineServeOptions(model=sys.argv[1], port=ports.choose(0, reserved=(0,)), policies=())
with engine_process(options, Path(sys.argv[2])) as url:
    print(url, flush=True)
    time.sleep(600)
"""


@pytest.mark.timeout(300)
def test_an_engine_ends_with_the_process_that_needed_it_even_if_that_is_killed(
    tmp_path: Path, model: Path
) -> None:
    command = [sys.executable, "-c", _HOLD, str(model), str(tmp_path / "log")]
    environ = {**os.environ, "HERMES_HOME": str(tmp_path)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline().startswith("http")
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        engine = ProcessId.of(int(children[0]))
        holder.kill()
    wait_until(lambda: not engine.alive())


@pytest.mark.parametrize("tied", [False, True])
def test_merging_changes_the_model_as_applying_the_adapter_does(
    tmp_path: Path, model: Path, tied: bool
) -> None:
    """Against PEFT, also where the LM head has an adapter and shares the embeddings' weights."""
    plain = AutoModelForCausalLM.from_pretrained(model, tie_word_embeddings=tied)
    base = tmp_path / "base"
    plain.save_pretrained(base)
    write_adapter(base, tmp_path / "adapter", ["q_proj", "v_proj", "down_proj", "lm_head"], 3)
    ids = torch.tensor([[5, 9, 40, 17, 200, 3]])
    applied = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(tmp_path / "adapter"))
    expected = applied(ids).logits
    merged = AutoModelForCausalLM.from_pretrained(base)
    merge_peft(merged, tmp_path / "adapter")
    merged.save_pretrained(tmp_path / "merged")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert not torch.allclose(loaded(ids).logits, plain(ids).logits, atol=1e-2)
    assert torch.allclose(loaded(ids).logits, expected, atol=1e-4)


def test_an_adapter_that_is_more_than_lora_is_not_merged(tmp_path: Path, model: Path) -> None:
    write_adapter(model, tmp_path / "adapter", ["q_proj"], 1)
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "use_dora": True}))
    with pytest.raises(EngineUserError, match="use_dora"):
        merge_peft(AutoModelForCausalLM.from_pretrained(model), tmp_path / "adapter")
