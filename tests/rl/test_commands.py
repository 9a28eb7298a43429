"""`hermes rl` on bad input, and what a person sees: two lines that say what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.process import failure
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, change_settings, hermes, make_home


@pytest.mark.parametrize(
    ("arguments", "error", "fix"),
    [
        (("select", "leters"), "there is no environment 'leters'", "letters"),
        (("select", "broken.py"), "there is no environment file broken.py", "hermes env list"),
        (("config",), "no environment is selected", "hermes rl config --env NAME"),
        (("start",), "no environment is selected", "hermes rl config --env NAME"),
        (("status", "0000"), "there is no run '0000'", "hermes rl status --all"),
        (("status",), "there is no run yet", "hermes rl start"),
        (("stop", "0000"), "there is no run '0000'", "hermes rl status --all"),
        (("results", "0000"), "there is no run '0000'", "hermes rl status --all"),
        (("doctor", "0000"), "there is no run '0000'", "hermes rl status --all"),
        (("weights", "0000"), "there is no run '0000'", "hermes rl status --all"),
        (("serve", "0000"), "there is no run '0000'", "hermes rl status --all"),
        (("start", "--env", "letters", "--set", "group_size=3"), "batch_size 32 is not a multiple", "33"),
        (("start", "--env", "letters", "--set", "group_size"), "has no value", "FIELD=VALUE"),
        (
            ("start", "--env", "letters", "--set", "nothing=8"),
            "there is no field 'nothing'",
            "hermes rl config",
        ),
        (("start", "--env", "letters", "--set", "group_size=9999"), "out of range", "at most 1024"),
        (("start", "--env", "letters", "--set", "group_size=many"), "valid integer", "integer"),
        (
            ("start", "--env", "letters", "--set", "testing=true", "--unlock"),
            "testing is locked at False: a run trains on real answers",
            "it has no other value",
        ),
    ],
)
def test_bad_input_is_refused_in_two_lines(
    home_with: MakeHome, arguments: tuple[str, ...], error: str, fix: str
) -> None:
    what, how = failure(hermes(home_with(), "rl", *arguments), 2)
    assert error in what and fix in how


def test_a_broken_environment_file_is_named_with_its_line(home_with: MakeHome, tmp_path: Path) -> None:
    broken = tmp_path / "broken_env.py"
    broken.write_text("from hermes.envs.base import BaseEnv\nclass Env(BaseEnv:\n")
    what, _ = failure(hermes(home_with(), "rl", "select", str(broken)), 2)
    assert f"{broken}:2" in what


def test_a_config_init_that_fails_is_reported(home_with: MakeHome, tmp_path: Path) -> None:
    file = tmp_path / "odd_env.py"
    letters = (Path(__file__).parent / "environments" / "letters.py").read_text()
    raising = "    @classmethod\n    def config_init(cls):\n        raise KeyError('no data')\n\n"
    file.write_text(letters.replace("    async def setup", f"{raising}    async def setup"))
    what, _ = failure(hermes(home_with(), "rl", "select", str(file)), 2)
    assert "config_init of" in what and "KeyError: 'no data'" in what


@pytest.mark.parametrize(
    ("word", "fix"), [("statsu", "did you mean status"), ("environments", "several words, in quotes")]
)
def test_a_word_that_is_no_command_is_not_taken_for_a_task(home_with: MakeHome, word: str, fix: str) -> None:
    done = hermes(home_with(), "rl", word)
    assert done.returncode == 2 and f"no such command '{word}'" in done.stderr and fix in done.stderr


def test_a_model_that_is_too_small_to_drive_a_training_is_warned_of(home_with: MakeHome) -> None:
    done = hermes(home_with(), "rl", "Train it", "--model", "hermes/other")
    warning, error, _ = done.stderr.splitlines()
    assert done.returncode == 2 and "too small to drive" in warning and "no bundled model" in error


def test_a_full_disk_is_said_before_anything_is_started(small_disk: Path, model: Path) -> None:
    home = make_home(small_disk / "home", model)
    what, how = failure(hermes(home, "rl", "start", "--env", "letters"), 1)
    assert "no space for checkpoints" in what and "HERMES_HOME" in how
    assert not (home / "runs").exists()


def test_a_model_that_needs_a_gpu_fails_fast_without_one(home_with: MakeHome) -> None:
    home = home_with()
    change_settings(home, model="Qwen/Qwen3-8B")
    from hermes.rl.machine import has_gpu

    if has_gpu():
        pytest.skip("this machine has a GPU")
    what, how = failure(hermes(home, "rl", "start", "--env", "letters"), 1)
    assert "8 billion parameters and needs a GPU" in what and "hermes/smollm2" in how


def test_an_engine_elsewhere_needs_its_key(home_with: MakeHome) -> None:
    home = home_with()
    change_settings(home, service="https://tinker.example.com")
    what, how = failure(hermes(home, "rl", "start", "--env", "letters"), 1)
    assert "https://tinker.example.com needs a key, and TINKER_API_KEY is not set" in what
    assert "hermes config set TINKER_API_KEY" in how
    what, _ = failure(hermes(home, "rl", "start", "--env", "letters", "--service", "managed"), 1)
    assert "the managed service needs a key" in what


def test_the_configuration_shows_what_is_locked_and_why(home_with: MakeHome) -> None:
    home = home_with()
    answer(home, "rl", "select", "letters")
    shown = answer(home, "rl", "config", "group_size", "4")
    fields = {field["name"]: field for field in shown["configurable_fields"]}
    assert (fields["env.group_size"]["current_value"], fields["env.group_size"]["type"]) == (4, "integer")
    assert (fields["env.group_size"]["minimum"], fields["env.group_size"]["maximum"]) == (2, 1024)
    assert fields["tinker.loss"]["choices"] == ["importance_sampling", "ppo", "cispo", "gspo"]
    locked = {field["name"]: field for field in shown["locked_fields"]}
    assert locked["env.total_steps"]["locked_value"] == 4 and "costs" in locked["env.total_steps"]["reason"]
    again = answer(home, "rl", "config", "total_steps", "9")
    steps = next(field for field in again["locked_fields"] if field["name"] == "env.total_steps")
    assert steps["current_value"] == 9


def test_a_person_unlocks_a_field_in_the_settings(home_with: MakeHome) -> None:
    home = home_with()
    change_settings(home, unlock=["total_steps"])
    answer(home, "rl", "select", "letters")
    shown = answer(home, "rl", "config", "total_steps", "9")
    assert "env.total_steps" in [field["name"] for field in shown["configurable_fields"]]


def test_listing_names_every_environment_and_what_was_left_out(home_with: MakeHome, tmp_path: Path) -> None:
    home = home_with()
    (home / "environments").mkdir()
    (home / "environments" / "torn.py").write_text("class (")
    found = answer(home, "rl", "list")
    assert {"letters", "calculator", "tool_calling"} <= {each["name"] for each in found["environments"]}
    assert found["broken"][0]["file_path"].endswith("torn.py")
    flags = hermes(home, "rl", "--list-environments")
    assert flags.returncode == 0 and "letters" in flags.stdout
    ready = hermes(home, "rl", "--check-server")
    assert ready.returncode == 0 and "can be trained here" in ready.stdout
