"""`hermes policy` and the name `policy`, as a person uses them."""

from __future__ import annotations

import json
from pathlib import Path

from hermes.training.policy_registry import BASE_ID, PolicyRecord, PolicyRegistry, new_policy_id
from tests.cli.process import failure, hermes

WEIGHTS = "tinker://run-1/weights/step-8"
SAMPLER = "tinker://run-1/sampler_weights/step-8"


def promote_lost(home: Path) -> PolicyRecord:
    """A policy that was promoted when its weights were still there."""
    registry = PolicyRegistry(home)
    record = PolicyRecord(
        new_policy_id(), "hermes/smollm2", WEIGHTS, SAMPLER, parent=BASE_ID, method="by hand"
    )
    registry.add(record)
    return registry.promote(record.id, "by hand")


def test_show_and_roll_back_and_promote_nothing_that_is_not_there(tmp_path: Path) -> None:
    assert json.loads(hermes(tmp_path, "policy", "list", "--json").stdout) == {
        "current": "base",
        "policies": [],
    }
    error, fix = failure(hermes(tmp_path, "policy", "promote", WEIGHTS), 2)
    assert f"the weights {WEIGHTS} are not in this home" in error and "hermes rl status --all" in fix
    promote_lost(tmp_path)
    record = json.loads(hermes(tmp_path, "policy", "show", "--json").stdout)
    assert (record["weights"], record["method"], record["parent"]) == (WEIGHTS, "by hand", "base")
    assert record["id"] in hermes(tmp_path, "policy", "list").stdout
    assert "the current policy is base" in hermes(tmp_path, "policy", "rollback").stdout
    error, fix = failure(hermes(tmp_path, "policy", "rollback"), 2)
    assert "no policy was promoted" in error and fix
    error, fix = failure(hermes(tmp_path, "policy", "promote", "NOPE"), 2)
    assert error == "'NOPE' matches no policy" and "hermes policy list" in fix


def test_a_batch_with_a_policy_whose_weights_are_gone_says_so(tmp_path: Path) -> None:
    promote_lost(tmp_path)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "2+2?"}\n')
    arguments = ("batch", "--dataset-file", str(prompts), "--run-name", "r", "--model", "policy")
    done = hermes(tmp_path, *arguments)
    assert done.returncode != 0 and "error:" in done.stderr and "Traceback" not in done.stderr


def test_a_question_to_a_policy_whose_weights_are_gone_says_so(tmp_path: Path) -> None:
    promote_lost(tmp_path)
    done = hermes(tmp_path, "--model", "policy", "-q", "2+2?")
    assert done.returncode != 0 and "error:" in done.stderr
    error, _ = failure(hermes(tmp_path, "--model", "policy:NOPE", "-q", "2+2?"), 2)
    assert "matches no policy" in error


def test_two_policies_are_compared_by_their_weights_and_texts(tmp_path: Path) -> None:
    registry = PolicyRegistry(tmp_path)
    registry.add(PolicyRecord("ONE", "fake/m", None, None, texts={"system_prompt": "Be kind.\nBe brief."}))
    texts = {"system_prompt": "Be kind.\nBe exact.", "examples": "FIG"}
    registry.add(PolicyRecord("TWO", "fake/m", WEIGHTS, SAMPLER, texts=texts))
    registry.promote("TWO", "by hand")
    shown = hermes(tmp_path, "policy", "compare", "ONE").stdout
    assert "ONE → TWO" in shown and f"(none) → {WEIGHTS}" in shown
    assert "-Be brief." in shown and "+Be exact." in shown and "    FIG" in shown
    assert "base_model" not in shown
    data = json.loads(hermes(tmp_path, "policy", "compare", "TWO", "ONE", "--json").stdout)
    assert data["differs"] == {"weights": [WEIGHTS, None]} and set(data["texts"]) == {
        "system_prompt",
        "examples",
    }
    assert "nothing differs" in hermes(tmp_path, "policy", "compare", "TWO", "TWO").stdout
    error, _ = failure(hermes(tmp_path, "policy", "compare", "NOPE"), 2)
    assert error == "'NOPE' matches no policy"
