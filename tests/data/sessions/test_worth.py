"""Sessions of every client, walked through what Hermes does with its own."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest

from hermes.core import StepKind
from hermes.store import Reader
from tests.cli.process import hermes
from tests.data.compress.made import write_tokenizer
from tests.data.sessions.clients import CLIENTS, copy_of, read_rows
from tests.data.sessions.short import QUESTION, short_session

ANSWERS = ("The settings are in pyproject.toml, under the table tool.", "I do not know.")
SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("client", CLIENTS)
def test_recorded_runs_of_any_agent_are_worth_what_ours_are(
    client: str, tokenizer_folder: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"

    def run(*arguments: str) -> str:
        done = hermes(home, *arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    sessions = {short_session(client, tmp_path / "s", f"short{at}", text) for at, text in enumerate(ANSWERS)}
    long = _with_long_results(client, copy_of(client, tmp_path / "long"))
    run("import", "--from", client, str(long), *map(str, sessions))

    listed = json.loads(run("trajectories", "list", "--agent", client, "--json"))
    assert listed
    assert json.loads(run("trajectories", "list", "--agent", "nobody", "--json")) == []
    hits = json.loads(run("trajectories", "list", "--text", "settings project", "--json"))
    with Reader(home / "hermes.db") as reader:
        by_answer = {reader.get(hit["id"]).answer: hit["id"] for hit in hits}
    good, bad = (by_answer[text] for text in ANSWERS)
    run("rate", good, "good")
    run("rate", bad, "bad")
    assert "pyproject.toml" in run("trajectories", "diff", good, bad)

    compressed = tmp_path / "compressed.jsonl"
    run(
        *("compress", f"agent={client}", "--tokenizer", str(tokenizer_folder)),
        *("--target-max-tokens", "2500", "--output", str(compressed)),
    )
    texts = [json.dumps(row) for row in read_rows(compressed)]
    assert len(texts) == len(listed)
    assert client == "hermes-agent" or any('"compression":' in text for text in texts), texts[0][:500]

    by_format = {}
    for form in ("trl-sft", "trl-preference", "trl-unpaired", "openai-finetune"):
        target = tmp_path / f"{form}.jsonl"
        run(
            "export",
            "--format",
            form,
            "--agent",
            client,
            "--where",
            f"agent={client}",
            "--output",
            str(target),
        )
        by_format[form] = read_rows(target)
    (pair,) = by_format["trl-preference"]
    assert pair["chosen"][0]["content"] == ANSWERS[0]
    assert pair["rejected"][0]["content"] == ANSWERS[1]
    assert sorted(row["label"] for row in by_format["trl-unpaired"]) == [False, True]
    assert len(by_format["trl-sft"]) >= 3
    answers = sum(m["role"] == "assistant" for row in by_format["trl-sft"] for m in row["messages"])
    with Reader(home / "hermes.db") as reader:
        own = sum(s.kind is StepKind.MODEL for t in reader.trajectories() for s in t.steps)
    assert answers >= len(by_format["trl-sft"])
    assert own >= 3

    evaluation = tmp_path / "eval.jsonl"
    evaluation.write_text(json.dumps({"prompt": QUESTION}) + "\n")
    clean = tmp_path / "clean.jsonl"
    run("export", "--format", "trl-sft", "--decontaminate", str(evaluation), "--output", str(clean))
    assert not any(QUESTION in json.dumps(row) for row in read_rows(clean))
    assert read_rows(clean)


def _with_long_results(client: str, path: Path) -> Path:
    """The session's tool results grow to what compression is for."""
    filler = " ".join(f"line{number}" for number in range(3000))
    if path.is_dir():
        for file in path.rglob("*.jsonl"):
            file.write_text(re.sub(r"step0 \d+\\n", f"step0 {filler} ", file.read_text()))
    elif client == "opencode":
        with sqlite3.connect(path) as connection:
            change = ('"output": "step0 ', f'"output": "step0 {filler} ')
            connection.execute("UPDATE part SET data = replace(data, ?, ?)", change)
        connection.close()
    return path


@pytest.mark.parametrize("client", CLIENTS)
def test_secrets_in_sessions_are_redacted_before_they_are_stored(client: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    path = short_session(client, tmp_path / "s", "secretive", f"The token is {SECRET}.")
    keys = {"OPENAI_API_KEY": SECRET}
    assert hermes(home, "import", "--from", client, str(path), env=keys).returncode == 0
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in home.glob("hermes.db*"))
    again = json.loads(hermes(home, "import", "--from", client, str(path), "--json", env=keys).stdout)
    assert again["rows"] == 0
