"""The record of policies: lineage, promotion, rollback, and the names that stand for them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hermes.errors import HermesError, UsageError
from hermes.rl.weights.open import base_folder
from hermes.training.policy_registry import BASE_ID, PolicyRecord, PolicyRegistry, named_policy, new_policy_id
from hermes.training.start_weights import find_start, find_weights
from tests.cli.process import failure, hermes


def policy(registry: PolicyRegistry, parent: str = BASE_ID, **known: object) -> PolicyRecord:
    record = PolicyRecord(
        new_policy_id(),
        "hermes/smollm2",
        "tinker://r/weights/1",
        "tinker://r/sampler_weights/1",
        parent=parent,
    )
    record = PolicyRecord(**{**{name: getattr(record, name) for name in record.__slots__}, **known})
    registry.add(record)
    return record


@pytest.mark.parametrize("seed", range(20))
def test_a_rollback_undoes_the_latest_promotion_whatever_the_lineage(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    draw = random.Random(seed)
    registry = PolicyRegistry(tmp_path)
    records = [policy(registry)]
    records += [policy(registry, draw.choice(records).id) for _ in range(4)]
    history = [BASE_ID]
    for _ in range(40):
        if draw.random() < 0.5 and len(history) > 1:
            history.pop()
            assert registry.rollback().id == history[-1]
        else:
            chosen = draw.choice([BASE_ID, *(record.id for record in records)])
            registry.promote(chosen, "by hand")
            history += [chosen] if chosen != history[-1] else []
        assert registry.current().id == history[-1]


def test_weights_that_exist_nowhere_are_not_promoted(tmp_path: Path) -> None:
    registry = PolicyRegistry(tmp_path)
    for name in ("tinker://nowhere/weights/1", policy(registry).id):
        error, fix = failure(hermes(tmp_path, "policy", "promote", name), 2)
        assert "are not in this home, and cannot be fetched" in error and "service" in fix
    assert registry.current().id == BASE_ID and registry.promotions() == []
    assert len(registry.policies()) == 1, "a refused promotion leaves no policy behind"


def test_promotion_and_rollback(tmp_path: Path) -> None:
    registry = PolicyRegistry(tmp_path)
    assert registry.current().id == BASE_ID
    with pytest.raises(UsageError, match="no policy was promoted"):
        registry.rollback()
    first = policy(registry, ratings=("R1", "R2"), decision="better")
    second = policy(registry, first.id, decision="better")
    kept = policy(registry, first.id, decision="undecided")
    assert registry.current().id == BASE_ID  # a candidate is not current by itself
    registry.promote(first.id, "better")
    registry.promote(second.id, "better")
    assert registry.current() == second
    assert registry.attempts(first.id) == 2
    assert registry.find(kept.id[-8:].lower()) == kept
    assert registry.rollback() == first
    assert registry.rollback().id == BASE_ID
    assert PolicyRegistry(tmp_path).current().id == BASE_ID
    assert len(registry.promotions()) == 4  # nothing is removed
    assert registry.find(first.id).ratings == ("R1", "R2")


def test_names(tmp_path: Path) -> None:
    registry = PolicyRegistry(tmp_path)
    record = policy(registry)
    registry.promote(record.id, "by hand")
    assert named_policy(tmp_path, "policy") == record
    assert named_policy(tmp_path, f"policy:{record.id}") == record
    assert named_policy(tmp_path, "openrouter/policy") is None
    assert named_policy(tmp_path, None) is None
    with pytest.raises(UsageError, match="matches no policy"):
        named_policy(tmp_path, "policy:NOPE")


def test_training_starts_from_a_policy_by_its_name(tmp_path: Path) -> None:
    registry, model = PolicyRegistry(tmp_path), "hermes/smollm2"
    assert find_start("policy", tmp_path, model) is None, "before the first promotion it is the base model"
    with pytest.raises(UsageError, match="is the base model itself"):
        find_weights("policy", tmp_path)
    record = policy(registry)
    registry.promote(record.id, "by hand")
    for name in ("policy", f"policy:{record.id}"):
        assert find_start(name, tmp_path, model) == find_weights(name, tmp_path) == record.weights
    with pytest.raises(UsageError, match="stands on hermes/smollm2, not on another/model"):
        find_start("policy", tmp_path, "another/model")


def test_the_base_model_that_a_policy_stands_on_is_found(tmp_path: Path) -> None:
    assert base_folder(str(tmp_path)) == tmp_path
    with pytest.raises(HermesError, match="there is no model '/nowhere/at/all', neither in a folder"):
        base_folder("/nowhere/at/all")


def test_a_torn_line_of_a_killed_process_is_no_policy(tmp_path: Path) -> None:
    registry = PolicyRegistry(tmp_path)
    record = policy(registry)
    with (tmp_path / "policies" / "log.jsonl").open("a") as file:
        file.write('{"event": "promotion", "policy')
    assert registry.policies() == [record]
    registry.promote(record.id, "by hand")
    assert registry.current() == record
