"""States written by a model: a real endpoint on the loopback interface that answers well, badly or never."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes.core import JSONObject
from hermes.data.compress.counting.tokens import Counter
from hermes.data.compress.folding.plan import FoldSettings
from hermes.data.compress.run import job
from tests.cli.process import hermes
from tests.data.compress import made
from tests.data.compress.summary_cases import summaries
from tests.fakes.provider import FakeProvider, Reply, status, text


def compress(home: Path, folder: Path, rows: Path, target: int, *flags: str) -> Any:
    return hermes(
        home,
        *("compress", "--input", str(rows), "--tokenizer", str(folder), "--target-max-tokens", str(target)),
        *("--json", *flags),
    )


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return made.write_jsonl(tmp_path / "rows.jsonl", [made.session_row(n, exchanges=8) for n in range(3)])


def written(rows: Path) -> list[JSONObject]:
    return made.read_jsonl(rows.with_name("rows_compressed.jsonl"))


def asks(provider: FakeProvider, strategy: str = "summarise") -> tuple[str, ...]:
    return ("--strategy", strategy, "--model", "m", "--base-url", provider.base_url)


def test_states_are_written_by_the_model_and_keep_what_later_turns_use(
    tmp_path: Path, tokenizer_folder: Path, rows: Path
) -> None:
    with FakeProvider(summaries) as provider:
        done = compress(tmp_path, tokenizer_folder, rows, 3000, *asks(provider))
        assert done.returncode == 0, done.stderr
        asked = len(provider.posts)
    assert 3 <= asked <= 9, "several outputs share one request"
    for row in written(rows):
        metrics = row["compression_metrics"]
        assert metrics["summary_fallback"] is None and metrics["summarization_api_calls"] >= 1
        assert metrics["decisions_kept"] == 1.0 and metrics["compressed_tokens"] <= 3000
        assert '"summary": "The output states: src/part_1.py' in row["conversations"][3]["value"]
    assert json.loads(done.stdout)["summarization"]["total_api_calls"] == asked


def test_a_summary_is_never_paid_for_twice(tmp_path: Path, tokenizer_folder: Path, rows: Path) -> None:
    with FakeProvider(summaries) as provider:
        compress(tmp_path, tokenizer_folder, rows, 3000, *asks(provider))
        paid, first = len(provider.posts), rows.with_name("rows_compressed.jsonl").read_text()
        again = compress(tmp_path, tokenizer_folder, rows, 3000, *asks(provider))
        assert len(provider.posts) == paid
    assert again.returncode == 0
    figures = json.loads(rows.with_name("rows_compressed_metrics.json").read_text())
    assert figures["processing"]["requests_sent"] == 0
    assert figures["summarization"]["total_api_calls"] == paid, "what the rows took, whenever it was paid"
    assert rows.with_name("rows_compressed.jsonl").read_text() == first


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (lambda body: status(400, message="no such model"), "no such model"),
        (lambda body: text("I cannot do that."), "the model gave no text for it"),
        (lambda body: summaries(body, forget=True), "it leaves out"),
        (lambda body: summaries(body, ramble=400), "tokens instead of at most"),
    ],
)
def test_a_summary_that_fails_is_replaced_by_folding_and_said_so(
    tmp_path: Path, tokenizer_folder: Path, rows: Path, counter: Counter, script: Any, reason: str
) -> None:
    with FakeProvider(script) as provider:
        done = compress(tmp_path, tokenizer_folder, rows, 3000, *asks(provider))
    assert done.returncode == 1
    assert json.loads(done.stdout)["summarization"]["rows_folded_instead"] == 3
    for row, line in zip(written(rows), rows.read_text().splitlines(), strict=True):
        expected = json.loads(job.compress(job.CompressItem("", line), FoldSettings(3000), counter).line)
        assert reason in row["compression_metrics"]["summary_fallback"]
        assert row["compression_metrics"]["summarization_errors"] >= 1
        assert row["conversations"] == expected["conversations"], "exactly what folding gives, no trace of it"


def test_a_text_that_lost_a_fact_is_asked_for_once_more(
    tmp_path: Path, tokenizer_folder: Path, rows: Path
) -> None:
    def second_time(body: dict[str, Any]) -> Reply:
        return summaries(body, forget="could not be used: it leaves out" not in str(body["messages"]))

    with FakeProvider(second_time) as provider:
        done = compress(tmp_path, tokenizer_folder, rows, 3000, *asks(provider))
    assert done.returncode == 0, done.stdout
    figures = json.loads(done.stdout)["summarization"]
    assert figures["rows_folded_instead"] == 0 and figures["total_errors"] >= 3


def test_a_refused_key_is_tried_once(tmp_path: Path, tokenizer_folder: Path, rows: Path) -> None:
    with FakeProvider(summaries, api_key="right") as provider:
        done = compress(tmp_path, tokenizer_folder, rows, 3000, *asks(provider), "--concurrency", "1")
        assert len(provider.posts) == 1
    assert done.returncode == 1 and len(written(rows)) == 3


def test_auto_asks_only_where_folding_loses_decisions(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = made.write_jsonl(
        tmp_path / "rows.jsonl", [made.session_row(0, exchanges=6), made.session_row(1, exchanges=40)]
    )
    with FakeProvider(summaries) as provider:
        done = compress(tmp_path, tokenizer_folder, rows, 3500, *asks(provider, "auto"))
        assert len(provider.posts) >= 1
    assert done.returncode == 0, done.stdout
    short, long = written(rows)
    assert short["compression_metrics"]["summarization_api_calls"] == 0
    assert short["compression_metrics"]["decisions_kept"] == 1.0
    assert long["compression_metrics"]["summarization_api_calls"] >= 1
    assert any('"summary": ' in turn["value"] for turn in long["conversations"])


def test_known_secrets_are_not_sent(tmp_path: Path, tokenizer_folder: Path) -> None:
    secret = "sk-verysecretvalue-0123456789"
    row = made.session_row(exchanges=8)
    row["conversations"][3]["value"] = row["conversations"][3]["value"].replace("line 3 ", f"key {secret} ")
    rows = made.write_jsonl(tmp_path / "rows.jsonl", [row])
    with FakeProvider(summaries) as provider:
        done = hermes(
            tmp_path,
            *("compress", "--input", str(rows), "--tokenizer", str(tokenizer_folder)),
            *("--target-max-tokens", "3000", *asks(provider)),
            env={"OPENROUTER_API_KEY": secret},
        )
        assert done.returncode == 0, done.stderr
        sent = json.dumps([request.json for request in provider.posts])
    assert secret not in sent and "[REDACTED:OPENROUTER_API_KEY]" in sent
