"""Recorded sessions of a stranger's agent are exported and trained on by SFT, DPO and KTO."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.store import Reader
from tests.cli.process import hermes as run_hermes
from tests.data.sessions.clients import CLIENTS
from tests.data.sessions.short import short_session
from tests.training.preference.conftest import Hermes
from tests.training.world import metrics

QUESTIONS = 8
FORMS = {"sft": "trl-sft", "dpo": "trl-preference", "kto": "trl-unpaired"}
EVERYDAY_CLIENT = "claude-code"
"""The others are nightly: the rows are the same once they are stored."""


def clients() -> list[object]:
    return [pytest.param(name, marks=[] if name == EVERYDAY_CLIENT else pytest.mark.slow) for name in CLIENTS]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", clients())
def test_each_trainer_takes_what_a_recorded_agent_did(
    client: str, hermes: Hermes, chat_model: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"

    def run(*arguments: str) -> None:
        done = run_hermes(home, *arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)

    answers = {"a" * 5: "good", "z" * 5: "bad"}
    sessions = {
        short_session(client, tmp_path / "sessions", f"s{number}-{verdict}", answer, f"q{number}")
        for number in range(QUESTIONS)
        for answer, verdict in answers.items()
    }
    run("import", "--from", client, *map(str, sorted(sessions)))
    with Reader(home / "hermes.db") as reader:
        verdicts = {
            row.id: answers.get(reader.get(row.id).answer or "") for row in reader.summaries(limit=99)
        }
    rated = {name: verdict for name, verdict in verdicts.items() if verdict is not None}
    assert len(rated) == 2 * QUESTIONS
    for name, verdict in rated.items():
        run("rate", name, verdict)

    for kind, form in FORMS.items():
        rows = tmp_path / f"{kind}.jsonl"
        run("export", "--format", form, "--where", f"agent={client}", "--output", str(rows))
        assert rows.read_text().count("\n") >= QUESTIONS
        words = ("train", kind, str(rows), "--base-model", str(chat_model), "--rank", "8", "--seed", "5")
        length = ("--batch-size", "8", "--epochs", "8", "--learning-rate", "0.005")
        process = hermes(*words, *length, "--name", kind)
        assert process.wait(300) == 0, process.output
        steps = metrics(home / "runs" / kind)
        assert len(steps) >= 8
        assert steps[-1]["train/loss"] < steps[0]["train/loss"], [step["train/loss"] for step in steps]
        assert steps[-1]["probe/gap"] < 1e-3, "the sampler answers with what was trained"
