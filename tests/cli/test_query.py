"""`hermes -q` as a user runs it: a real process, a real endpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.process import failure, hermes
from tests.fakes.provider import FakeProvider, status, text, tool_calls

SUM = ("calculator", {"expression": "17 * 23"})


def ask(home: Path, provider: FakeProvider, *flags: str) -> object:
    return hermes(home, "-q", "What is 17 * 23?", "--model", "m", "--base-url", provider.base_url, *flags)


def test_the_answer_is_on_stdout_and_the_tools_on_stderr(tmp_path: Path) -> None:
    with FakeProvider([tool_calls([SUM]), text("It is 391.")]) as provider:
        done = ask(tmp_path, provider, "--toolsets", "math")
    assert done.returncode == 0
    assert done.stdout.strip() == "It is 391."
    assert '-> calculator(expression="17 * 23")' in done.stderr
    assert "<- calculator: ok" in done.stderr
    assert "Traceback" not in done.stderr


def test_thinking_goes_to_stderr(tmp_path: Path) -> None:
    with FakeProvider([text("It is 391.", reasoning="17 * 23 is 340 + 51.")]) as provider:
        done = ask(tmp_path, provider, "--toolsets", "none")
    assert done.stdout.strip() == "It is 391."
    assert "17 * 23 is 340 + 51." in done.stderr


def test_json_gives_one_object_that_names_the_recorded_trajectory(tmp_path: Path) -> None:
    with FakeProvider([tool_calls([SUM]), text("It is 391.")]) as provider:
        done = ask(tmp_path, provider, "--toolsets", "math", "--json")
    report = json.loads(done.stdout)
    assert report["answer"] == "It is 391."
    assert report["outcome"]["stop_reason"] == "completed"
    assert report["cost_usd"] == 0, "a keyless model on loopback"
    shown = hermes(tmp_path, "trajectories", "show", report["trajectory_id"], "--json")
    assert json.loads(shown.stdout)["header"]["id"] == report["trajectory_id"]


def test_a_question_can_come_from_standard_input(tmp_path: Path) -> None:
    with FakeProvider([text("Hello.")]) as provider:
        flags = ("--model", "m", "--base-url", provider.base_url, "--toolsets", "none")
        done = hermes(tmp_path, *flags, stdin="Say hello.")
        assert provider.requests[0].json["messages"][-1]["content"] == "Say hello."
    assert done.stdout.strip() == "Hello."


def test_flags_may_be_written_with_underscores(tmp_path: Path) -> None:
    with FakeProvider([tool_calls([SUM])], loop=True) as provider:
        done = hermes(
            tmp_path,
            "-q",
            "x",
            "--model=m",
            f"--base_url={provider.base_url}",
            "--toolsets=math",
            "--max_turns=2",
            "--json",
        )
        assert len(provider.requests) == 2
    assert json.loads(done.stdout)["outcome"]["stop_reason"] == "max_turns"
    assert done.returncode == 1


def test_control_characters_from_a_model_do_not_reach_the_terminal(tmp_path: Path) -> None:
    with FakeProvider([text("red \x1b[31m and a bell \x07")]) as provider:
        done = ask(tmp_path, provider, "--toolsets", "none")
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout


@pytest.mark.parametrize(
    ("reply", "said"),
    [(status(401), "401"), (status(404, message="no such model"), "m")],
)
def test_a_failing_endpoint_is_reported_with_exit_code_1_and_recorded(
    tmp_path: Path, reply: object, said: str
) -> None:
    with FakeProvider([reply], loop=True) as provider:  # type: ignore[list-item]
        done = ask(tmp_path, provider, "--toolsets", "none")
    assert done.returncode == 1
    assert "error: error (provider)" in done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    listed = json.loads(hermes(tmp_path, "trajectories", "list", "--json").stdout)
    assert [row["stop_reason"] for row in listed] == ["error"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-q", "  "), "the question is empty"),
        (("-q", "x", "--toolsets", "terminl"), "terminal"),
        (("-q", "x", "--model", "nowhere/m"), "unknown provider 'nowhere'"),
        (("-q", "x", "--model", "openrouter/m"), "OPENROUTER_API_KEY"),
        (("-q", "x", "--workspace", "/no/such/dir"), "is not a directory"),
        (("-q", "x", "--sandbox", "jail"), "jail"),
        (("-q", "x", "--nonsense"), "--nonsense"),
        (("trajectorys",), "trajectories"),
    ],
)
def test_bad_input_says_what_is_wrong_and_exits_with_2(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = hermes(tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_endpoint_that_is_not_there_is_reported(tmp_path: Path) -> None:
    done = hermes(
        tmp_path,
        "-q",
        "x",
        "--model",
        "m",
        "--base-url",
        "http://127.0.0.1:9/v1",
        "--toolsets",
        "none",
        env={
            "HERMES_PROVIDERS__CUSTOM__MAX_RETRIES": "0",
            "HERMES_PROVIDERS__CUSTOM__BASE_URL": "http://127.0.0.1:9/v1",
        },
    )
    assert done.returncode == 1
    assert "http://127.0.0.1:9" in done.stderr
    assert "is the server running" in done.stderr.lower()


def test_a_home_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with FakeProvider([text("x")]) as provider:
        done = ask(blocked, provider, "--toolsets", "none")
    message, hint = failure(done, done.returncode)
    assert done.returncode != 0
    assert str(blocked) in message
    assert hint


def test_a_full_disk_is_reported_and_what_was_recorded_before_is_kept(small_disk: Path) -> None:
    with FakeProvider([text("short"), text("x" * 2_000_000)]) as provider:
        assert ask(small_disk, provider, "--toolsets", "none").returncode == 0
        done = ask(small_disk, provider, "--toolsets", "none", "--json")
    assert done.returncode == 1
    assert f"cannot write to {small_disk}/hermes.db" in done.stderr
    assert "free space" in done.stderr
    listed = json.loads(hermes(small_disk, "trajectories", "list", "--json").stdout)
    assert listed[-1]["stop_reason"] == "completed"


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from hermes.cli.main import cli;"
        "assert CliRunner().invoke(cli, ['--help']).exit_code == 0;"
        "heavy = set('openai torch rich pydantic prompt_toolkit httpx2 jinja2 ruamel sqlite3'.split());"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def flags(provider: FakeProvider, toolsets: str = "none") -> tuple[str, ...]:
    return ("--base-url", provider.base_url, "--toolsets", toolsets)


def test_standard_input_is_added_to_the_question_and_words_alone_are_a_question(tmp_path: Path) -> None:
    with FakeProvider([text("Short."), text("Four.")]) as provider:
        done = hermes(tmp_path, "-q", "Summarise", *flags(provider), stdin="A long report.\n")
        assert done.returncode == 0, done.stderr
        assert hermes(tmp_path, "What is 2 + 2?", *flags(provider)).stdout.strip() == "Four."
        first, second = (request.json for request in provider.posts)
    assert first["messages"][-1]["content"] == "Summarise\n\nA long report."
    assert second["messages"][-1]["content"] == "What is 2 + 2?"
    assert first["model"] == "fake", "the server says which model it has"


def test_an_address_alone_with_several_models_names_them(tmp_path: Path) -> None:
    with FakeProvider([], models=("small", "large")) as provider:
        error, fix = failure(hermes(tmp_path, "-q", "x", *flags(provider)), 2)
    assert error == f"{provider.base_url} serves 2 models: small, large"
    assert fix == "choose one: --model small"


def test_files_of_an_unattended_question_are_kept_and_their_folder_is_printed(tmp_path: Path) -> None:
    write = tool_calls([("write_file", {"path": "notes.txt", "content": "remember"})])
    with FakeProvider([write, text("Done."), text("Nothing to do.")]) as provider:
        here = (*flags(provider, "file"), "--sandbox", "local")
        done = hermes(tmp_path, "-q", "Take a note", *here)
        assert done.returncode == 0, done.stderr
        folder = Path(done.stderr.partition("files are kept in ")[2].partition(";")[0])
        assert (folder / "notes.txt").read_text() == "remember"
        assert "files are kept" not in hermes(tmp_path, "-q", "Nothing", *here).stderr
    assert list((tmp_path / "workspaces").iterdir()) == [folder]


def test_nothing_is_recorded_with_no_log_and_a_conversation_is_continued_with_c(tmp_path: Path) -> None:
    with FakeProvider([text("Secret."), text("One."), text("Two.")]) as provider:
        done = hermes(tmp_path, "-q", "Hush", "--no-log", *flags(provider))
        assert "not recorded" in done.stderr
        assert json.loads(hermes(tmp_path, "trajectories", "list", "--json").stdout) == []
        hermes(tmp_path, "-q", "First", "--system", "Count.", *flags(provider))
        hermes(tmp_path, "-c", "-q", "Second", *flags(provider))
        sent = [message["content"] for message in provider.posts[-1].json["messages"]]
    assert sent == ["Count.", "First", "One.", "Second"]
    newest, first = json.loads(hermes(tmp_path, "trajectories", "list", "--json").stdout)
    assert (newest["relation"], newest["parent_id"]) == ("continued", first["id"])
    assert newest["session_id"] == first["session_id"]


def test_a_template_a_fragment_and_a_schema(tmp_path: Path) -> None:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "count.yaml").write_text("prompt: 'In $language: $input'\nsystem: Count.\n")
    note = tmp_path / "note.txt"
    note.write_text("three words here")
    schema = '{"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}'
    with FakeProvider([text('{"n": 3}'), text('{"n": "three"}')]) as provider:
        words = ("-q", "How many?", "-t", "count", "--param", "language=German", "-f", str(note))
        done = hermes(tmp_path, *words, "--schema", schema, *flags(provider))
        assert (done.returncode, done.stdout.strip()) == (0, '{"n": 3}'), done.stderr
        body = provider.posts[0].json
        wrong = hermes(tmp_path, "-q", "How many?", "--schema", schema, *flags(provider))
    assert body["messages"][0]["content"] == "Count."
    assert body["messages"][1]["content"].startswith("In German: How many?\n\nFile ")
    assert "three words here" in body["messages"][1]["content"]
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["n"]
    assert wrong.returncode == 1
    assert "does not fit the schema: $.n" in wrong.stderr
    missing = hermes(tmp_path, "-q", "x", "-t", "count")
    assert "needs a value for language" in missing.stderr


def test_a_retry_is_announced_and_the_examples_of_the_bundled_model_are_not_shown(tmp_path: Path) -> None:
    with FakeProvider([status(500), text("Back.")]) as provider:
        done = hermes(tmp_path, "-q", "x", *flags(provider))
    assert done.returncode == 0
    assert "The next attempt follows in" in done.stderr


def test_a_model_has_a_name_of_ones_own(tmp_path: Path) -> None:
    with FakeProvider([text("Hello."), text("Hello.")]) as provider:
        fake = f"providers:\n  fake:\n    base_url: {provider.base_url}\n"
        (tmp_path / "config.yaml").write_text(f"{fake}model: fast\nmodel_aliases:\n  fast: fake/small\n")
        named = hermes(tmp_path, "-q", "Hello?", "--model", "fast", "--toolsets", "none", "--json")
        default = hermes(tmp_path, "-q", "Hello?", "--toolsets", "none", "--json")
    assert [json.loads(done.stdout)["model"] for done in (named, default)] == ["fake/small"] * 2
    assert {request.json["model"] for request in provider.posts} == {"small"}
