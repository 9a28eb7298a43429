"""The dataset card: true, complete, and safe to publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from hermes import __version__
from hermes.batch.output.card import spec_digest
from hermes.data.formats.batch import COLUMNS
from tests.batch.made import done, failed, filtered, finish, spec


def card(folder: Path, *entries: Any, **known: Any) -> str:
    finish(folder, entries, keys=dict.fromkeys(entry.key for entry in entries), **known)
    return (folder / "README.md").read_text("utf-8")


def front_matter(text: str) -> dict[str, Any]:
    data: dict[str, Any] = YAML(typ="safe").load(text.split("---\n")[1])
    return data


def cells(text: str) -> dict[str, str]:
    """First cell of each table row → its second; the first row stands."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[1] for row in reversed(rows) if len(row) > 1}


def test_the_front_matter_names_the_shards_and_the_size(tmp_path: Path) -> None:
    got = front_matter(card(tmp_path, done("a")))
    files = [{"split": "train", "path": "parquet/*.parquet"}]
    assert got["configs"] == [{"config_name": "default", "data_files": files}]
    assert got["size_categories"] == ["n<1K"]
    assert {"hermes", "agent", "sharegpt"} <= set(got["tags"])
    assert got["license"] == "unknown"


def test_it_says_what_made_the_data(tmp_path: Path) -> None:
    settings = {"limits.max_turns": 5, "sampling.temperature": 0.7}
    known = {
        "distribution": "research",
        "seed": 7,
        "samples_per_prompt": 2,
        "dataset_digest": "abc123",
        "settings": settings,
        "accepted": ("seed: 6 -> 7",),
    }
    got = cells(card(tmp_path, done("a"), **known))
    assert got["hermes"] == f"`{__version__}`"
    assert (got["model"], got["distribution"], got["seed"]) == ("`test/model`", "`research`", "`7`")
    assert got["settings given"] == "`limits.max_turns=5, sampling.temperature=0.7`"
    assert got["dataset digest"] == "`abc123`"
    assert got["settings changed on the way"] == "`seed`"
    assert got["specification digest"] == f"`{spec_digest(spec(**known))}`"


def test_it_counts_rows_outcomes_filters_and_failures(tmp_path: Path) -> None:
    entries = [
        done("a"),
        filtered("b", "no reasoning"),
        filtered("c", "no reasoning"),
        failed("d", "ProviderError: x"),
    ]
    text = card(tmp_path, *entries, filters={"require_reasoning": True, "min_reward": 0.5})
    got = cells(text)
    assert (got["rows"], got["samples planned"]) == ("`1`", "`4`")
    assert (got["`completed`"], got["`no reasoning`"], got["`ProviderError`"]) == ("3", "2", "1")
    assert "Filters: `require_reasoning`, `min_reward=0.5`." in text


def test_it_says_what_was_redacted_and_that_the_licence_is_open(tmp_path: Path) -> None:
    text = card(tmp_path, done("a", conversations=[{"from": "gpt", "value": "[REDACTED:KEY]"}]))
    assert "Finished samples with such a mark: 1." in text
    assert "\nLicence: unknown: set it before publishing.\n" in text


def test_every_column_is_explained(tmp_path: Path) -> None:
    assert {f"`{column.name}`" for column in COLUMNS} <= set(cells(card(tmp_path, done("a"))))


def test_nothing_tells_whose_machine_it_was(tmp_path: Path) -> None:
    text = card(
        tmp_path,
        done("a"),
        dataset="/home/grace/secret project/tasks.jsonl",
        reward="/home/grace/rewards.py:tests_pass",
        base_url="http://user:pass@10.0.0.7:8000/v1",
        settings={"providers.custom.base_url": "http://10.0.0.7:8000/v1"},
        accepted=("base_url: http://10.0.0.6/v1 -> http://10.0.0.7:8000/v1",),
    )
    assert "grace" not in text and "10.0.0" not in text
    assert (cells(text)["dataset"], cells(text)["reward"]) == ("`tasks.jsonl`", "`rewards.py:tests_pass`")
    assert cells(card(tmp_path / "2", done("a"), dataset="org/name:test"))["dataset"] == "`org/name:test`"


def test_odd_names_do_not_break_the_page(tmp_path: Path) -> None:
    text = card(
        tmp_path, done("a"), name='x: "y" # z', model="a|b`c`\n| evil |", system_prompt="secret words"
    )
    assert front_matter(text)["pretty_name"] == 'x: "y" # z'
    assert cells(text)["model"] == "`a/b'c' / evil /`"
    assert "secret words" not in text
