"""Looking before training, with a real model: `hermes rl test` and `hermes rl preflight`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.provider import FakeProvider, text
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, hermes


@pytest.mark.slow
def test_preflight_says_whether_it_will_learn(home_with: MakeHome) -> None:
    home = home_with()
    answer(home, "rl", "select", "letters")
    found = answer(home, "rl", "preflight", "--groups", "2")
    assert found["rollouts"] == 16 and 0 < found["pass_rate"] <= 1
    assert found["groups_with_signal"] == 1.0
    assert found["suggested"]["group_size"] >= 8 and found["suggested"]["learning_rate"] > 0
    assert found["estimate"]["seconds_per_step"] > 0 and found["estimate"]["memory_gb"] > 0
    assert found["verdict"].split()[0] in ("will", "little")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_inference_test_has_files_of_its_own_and_one_bad_model_spoils_nothing(
    home_with: MakeHome, model: Path
) -> None:
    home = home_with()
    answer(home, "rl", "select", "letters")
    flags = ("--num-steps", "1", "--group-size", "2", "--model", str(model), "--model", "nobody/model")
    files = set()
    for _ in range(2):
        found = answer(home, "rl", "test", *flags)
        good, bad = found["models_tested"]
        assert good["total_completions"] == 2 and "error" not in good
        assert "OPENROUTER_API_KEY is not set" in bad["error"]
        assert found["summary"]["models_succeeded"] == 1 and found["summary"]["best_model"] == str(model)
        files.add(good["output_file"])
    assert len(files) == 2 and all(Path(file).is_file() for file in files)
    folder = home / "logs" / "rl_training" / "inference_tests"
    assert not list(folder.glob("*.yaml")), "what held the keys is gone"


@pytest.mark.slow
def test_an_endpoint_is_tested_with_its_key_and_the_key_is_in_no_file(home_with: MakeHome) -> None:
    home = home_with()
    with FakeProvider(lambda request: text("bdfh"), api_key="sk-or-v1-0123456789") as provider:
        (home / "config.yaml").write_text(
            f"providers: {{mine: {{base_url: '{provider.base_url}', key_env: MY_KEY}}}}"
        )
        answer(home, "rl", "select", "letters")
        flags = ("--num-steps", "1", "--group-size", "2", "--model", "mine/m")
        found = answer(home, "rl", "test", *flags, env={"MY_KEY": "sk-or-v1-0123456789"})
    tested = found["models_tested"][0]
    assert (tested["accuracy"], tested["total_completions"]) == (1.0, 2)
    for file in (home / "logs").rglob("*"):
        assert file.is_dir() or b"sk-or-v1-0123456789" not in file.read_bytes()


def test_if_no_model_can_be_asked_the_command_fails(home_with: MakeHome) -> None:
    home = home_with()
    answer(home, "rl", "select", "letters")
    done = hermes(home, "rl", "test", "--num-steps", "1", "--group-size", "2")
    assert done.returncode == 1 and done.stdout.count("OPENROUTER_API_KEY is not set") == 3
