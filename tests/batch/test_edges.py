"""Runs at the edges: odd text, odd rows, full and forbidden disks, spent money, and orders to stop."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes.batch.journal import read_journal
from hermes.config.paths import db_path
from hermes.sandbox import usable
from hermes.store import Filter, Reader
from tests.batch.test_run import command, rows, solve, start, workers_of, write_tasks
from tests.cli.process import failure, hermes
from tests.fakes.provider import FakeProvider, Reply, delayed, text, tool_calls

PRICED = {"HERMES_PRICES": json.dumps({"custom/m": {"input": 1000.0, "output": 1000.0}})}
"""15 tokens a call: 1.5 cents."""
CALL_USD = 0.015


def write_rows(folder: Path, *written: dict[str, Any]) -> None:
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))


def echo(body: dict[str, Any]) -> Reply:
    return text(f"You said: {body['messages'][-1]['content']}")


def shown(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in body["messages"]]


@contextmanager
def disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of its own, which can be filled, grown and write-protected."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


# Text


def test_a_prompt_of_five_megabytes_goes_through_whole(tmp_path: Path) -> None:
    prompt = "0123456789abcde\n" * (5 * 1024 * 1024 // 16)
    write_rows(tmp_path, {"prompt": prompt}, {"prompt": "short"})
    with FakeProvider(lambda body: text(str(len(body["messages"][-1]["content"])))) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider))
    assert done.returncode == 0, done.stderr
    long, short = rows(tmp_path)
    assert [turn["value"] for turn in long["conversations"][-2:]] == [prompt, str(len(prompt))]
    assert short["conversations"][-1]["value"] == "5"


ODD_TEXTS = {
    "astral": "𝔘𝔫𝔦 🜁 👩‍👩‍👧‍👦 \U0010ffff",
    "combining": "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L é vs é",
    "right to left": "שלום \u202eעולם\u202c مرحبا",
    "controls": "a\0b\x01\x1b[31mred\x7f\r\n\t\ufeff\u2028\u2029\x85end",
    "lone surrogates": "high \ud800 low \udc00 swapped \udfff\ud83d",
    "private and unassigned": "\ue000 \U000e0001 \ufffe \uffff",
    "tags of the format itself": '<tool_call>\n{"name": 1}\n</tool_call> <think> </think>',
}


def test_text_of_every_kind_comes_through_as_it_was(tmp_path: Path) -> None:
    write_rows(tmp_path, *({"prompt": odd, "kind": name, "note": odd} for name, odd in ODD_TEXTS.items()))
    with FakeProvider(echo) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider))
        sent = {post.json["messages"][-1]["content"] for post in provider.posts}
    assert done.returncode == 0, done.stderr
    assert sent == set(ODD_TEXTS.values())
    written = {row["metadata"]["kind"]: row["conversations"] for row in rows(tmp_path)}
    assert set(written) == set(ODD_TEXTS)
    for name, odd in ODD_TEXTS.items():
        kept = odd.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert [turn["value"] for turn in written[name][-2:]] == [kept, f"You said: {kept}"], name
    with Reader(db_path(tmp_path)) as reader:
        assert reader.count(Filter(run_id="run", stop_reason="completed")) == len(ODD_TEXTS)


def test_odd_ids_name_their_rows_and_one_that_is_no_text_is_a_bad_row(tmp_path: Path) -> None:
    ids = [odd for name, odd in ODD_TEXTS.items() if name != "lone surrogates"]
    write_rows(tmp_path, {"id": "half \ud800", "prompt": "x"}, *({"id": odd, "prompt": "x"} for odd in ids))
    with FakeProvider(echo) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--seed", "1"))
    assert done.returncode == 0, done.stderr
    assert [row["key"] for row in rows(tmp_path)] == ids
    (bad,) = rows(tmp_path, file="bad_rows.jsonl")
    assert bad["line"] == 1 and "surrogate" in bad["reason"]


# Rows


def test_equal_prompts_are_samples_of_their_own_also_when_the_dataset_grows_and_moves(tmp_path: Path) -> None:
    write_rows(tmp_path, *[{"prompt": "same"}] * 3, {"prompt": "other"})
    with FakeProvider(echo) as provider:
        assert hermes(tmp_path, *command(tmp_path, provider)).returncode == 0
        before = {(row["key"], row["id"]) for row in rows(tmp_path)}
        assert len(before) == 4
        write_rows(tmp_path, {"prompt": "new"}, {"prompt": "other"}, *[{"prompt": "same"}] * 4)
        again = hermes(tmp_path, *command(tmp_path, provider, "--accept-changes"))
        assert again.returncode == 0, again.stderr
        assert len(provider.posts) == 4 + 2
    assert before < {(row["key"], row["id"]) for row in rows(tmp_path)}
    assert len(rows(tmp_path)) == 6


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no usable row"),
        ("\n\n", "no usable row"),
        ('{"question": "?"}\n', "line 1: neither 'prompt' nor 'messages'"),
        ("not JSON\n[1]\n", "line 1: not JSON"),
        ('{"prompt": "x", "cwd": "/etc"}\n', "only with 'image'"),
        ('{"prompt": "x", "cwd": "a/../../b"}\n', "not a directory of the workspace"),
        ('{"prompt": "x", "files": {"../up.txt": ""}}\n', "not a path inside the workspace"),
    ],
)
def test_a_dataset_without_a_usable_row_is_refused_with_the_first_reason(
    tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "tasks.jsonl").write_text(content)
    with FakeProvider(echo) as provider:
        error, fix = last_lines(hermes(tmp_path, *command(tmp_path, provider)).stderr)
        assert provider.posts == []
    assert "tasks.jsonl" in error and said in error
    assert fix
    assert not (tmp_path / "data").exists()


def test_several_prompts_are_one_conversation(tmp_path: Path) -> None:
    write_rows(tmp_path, {"prompt": ["first", "second", "third"]})
    with FakeProvider(echo) as provider:
        assert hermes(tmp_path, *command(tmp_path, provider)).returncode == 0
        last = shown(provider.posts[-1].json)
    said = ["first", "You said: first", "second", "You said: second", "third"]
    assert [content for _, content in last[1:]] == said
    (row,) = rows(tmp_path)
    assert [turn["value"] for turn in row["conversations"][1:]] == [*said, "You said: third"]
    assert row["turns"] == 3


def test_what_is_only_shown_to_the_model_stays_out_of_the_dataset(tmp_path: Path) -> None:
    write_rows(tmp_path, {"prompt": "the task"})
    (tmp_path / "prefill.json").write_text(
        json.dumps([{"role": "user", "content": "before"}, {"role": "assistant", "content": "shown"}])
    )
    flags = (
        "--ephemeral-system-prompt",
        "Whisper.",
        "--prefill-messages-file",
        str(tmp_path / "prefill.json"),
    )
    with FakeProvider(echo) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, *flags))
        seen = shown(provider.posts[0].json)
    assert done.returncode == 0, done.stderr
    assert seen == [("system", "Whisper."), ("user", "before"), ("assistant", "shown"), ("user", "the task")]
    (row,) = rows(tmp_path)
    said = [(turn["from"], turn["value"]) for turn in row["conversations"] if turn["from"] != "system"]
    assert said == [("human", "the task"), ("gpt", "You said: the task")]
    assert "Whisper" not in json.dumps(row)


def test_a_config_file_gives_flags_and_the_command_line_wins(tmp_path: Path) -> None:
    write_tasks(tmp_path, 5)
    config = tmp_path / "batch.yaml"
    config.write_text(
        f"dataset_file: {tmp_path}/tasks.jsonl\nrun-name: from_file\noutput_dir: {tmp_path}/data\n"
        "model: m\ntoolsets: math\nmax_samples: 2\nnum_workers: 1\ntemperature: 0.25\n"
    )
    with FakeProvider(solve) as provider:
        flags = ("batch", "--config", str(config), "--base-url", provider.base_url, "--max-samples", "3")
        done = hermes(tmp_path, *flags, "--json")
        assert {post.json["temperature"] for post in provider.posts} == {0.25}
    assert done.returncode == 0, done.stderr
    assert len(rows(tmp_path, "from_file")) == 3
    config.write_text("max_sample: 2\n")
    error, _ = failure(hermes(tmp_path, "batch", "--config", str(config)), 2)
    assert "batch.yaml" in error and "max_sample" in error


# Sandboxes


def look_around(body: dict[str, Any]) -> Reply:
    last = body["messages"][-1]
    if last["role"] == "tool":
        return text(json.loads(last["content"])["output"])
    return tool_calls([("terminal", {"command": last["content"]})])


def test_a_row_s_files_lie_in_the_workspace_and_its_tools_work_in_its_directory(tmp_path: Path) -> None:
    if reason := usable("bubblewrap"):
        pytest.skip(reason)
    files = {"top.txt": "at the top", "src/app/main.txt": "in the directory ü"}
    write_rows(
        tmp_path,
        {"id": "plain", "prompt": "cat top.txt src/app/main.txt", "files": files},
        {"id": "inside", "prompt": "pwd; cat main.txt ../../top.txt", "files": files, "cwd": "src/app"},
        {"id": "made", "prompt": "pwd; ls; touch here; cat top.txt", "cwd": "new/place"},
    )
    (tmp_path / "score.py").write_text(
        "def score(ctx):\n    return float('here' in ctx.terminal('ls')['output'])\n"
    )
    flags = ("--toolsets", "terminal", "--sandbox", "bubblewrap", "--reward", f"{tmp_path}/score.py:score")
    with FakeProvider(look_around) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, *flags))
        prompts = {shown(post.json)[1][1]: shown(post.json)[0][1] for post in provider.posts}
    assert done.returncode == 0, done.stderr
    answers = {row["key"]: row["conversations"][-1]["value"] for row in rows(tmp_path)}
    rewards = {row["key"]: row["reward"] for row in rows(tmp_path)}
    assert answers["plain"] == "at the topin the directory ü"
    assert answers["inside"] == "/workspace/src/app\nin the directory üat the top"
    assert answers["made"].splitlines()[0] == "/workspace/new/place"
    assert "No such file" in answers["made"]
    assert rewards == {"plain": 0.0, "inside": 0.0, "made": 1.0}
    assert "/workspace/new/place" in prompts["pwd; ls; touch here; cat top.txt"]


def test_an_image_without_an_engine_fails_that_row_alone_and_says_why(tmp_path: Path) -> None:
    if usable("docker") is None:
        pytest.skip("there is a container engine")
    write_rows(tmp_path, {"id": "boxed", "prompt": "x", "image": "debian:13"}, {"id": "plain", "prompt": "y"})
    with FakeProvider(echo) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider))
        assert [post.json["messages"][-1]["content"] for post in provider.posts] == ["y"]
    assert done.returncode == 1
    assert [row["key"] for row in rows(tmp_path)] == ["plain"]
    (failed,) = rows(tmp_path, file="failed.jsonl")
    assert failed["key"] == "boxed"
    assert failed["cause"].startswith("SandboxError: ")
    assert json.loads(done.stdout)["failed"] == {"SandboxError": 1}


# Disks


def test_a_torn_last_line_is_owed_again_and_nothing_else_is(tmp_path: Path) -> None:
    write_tasks(tmp_path, 6)
    flags = ("--num-workers", "1", "--concurrency", "1")
    with FakeProvider(solve) as provider:
        assert hermes(tmp_path, *command(tmp_path, provider, *flags)).returncode == 0
        (segment,) = (tmp_path / "data/run/journal").glob("*.jsonl")
        lines = segment.read_bytes().splitlines(keepends=True)
        segment.write_bytes(b"".join(lines[:4]) + lines[4][: len(lines[4]) // 2])
        again = hermes(tmp_path, *command(tmp_path, provider, *flags))
        assert len(provider.posts) == 12 + 4
    assert again.returncode == 0, again.stderr
    assert [row["conversations"][-1]["value"] for row in rows(tmp_path)] == [
        f"The answer is {2 * number}." for number in range(6)
    ]
    assert len(list(read_journal(tmp_path / "data/run/journal"))) == 6


def wordy(body: dict[str, Any]) -> Reply:
    return text(f"{body['messages'][-1]['content']}: {'word ' * 4000}")


@pytest.mark.parametrize("size", ["300k", "1000k"], ids=["the journal", "the dataset"])
def test_a_full_disk_is_named_and_with_room_the_same_command_goes_on(tmp_path: Path, size: str) -> None:
    write_rows(tmp_path, *({"prompt": f"task {number}"} for number in range(40)))
    with disk(tmp_path / "data", size), FakeProvider(wordy) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--concurrency", "4"))
        error, fix = last_lines(done.stderr)
        assert done.returncode == 1
        assert str(tmp_path / "data/run") in error
        assert "No space left on device" in error
        assert "free space" in fix
        paid, kept = len(provider.posts), len(list(read_journal(tmp_path / "data/run/journal")))
        remount(tmp_path / "data", "size=64m")
        again = hermes(tmp_path, *command(tmp_path, provider, "--concurrency", "4"))
        assert again.returncode == 0, again.stderr
        assert len(provider.posts) == paid + 40 - kept
        assert len(rows(tmp_path)) == 40


def test_a_full_home_stops_the_run_before_it_outruns_its_record(tmp_path: Path) -> None:
    write_rows(tmp_path, *({"prompt": f"task {number}"} for number in range(60)))
    with disk(tmp_path / "home", "2m"), FakeProvider(wordy) as provider:
        done = hermes(tmp_path / "home", *command(tmp_path, provider, "--concurrency", "4"))
        error, fix = last_lines(done.stderr)
        assert done.returncode == 1
        assert str(tmp_path / "home") in error
        assert fix
        assert len(provider.posts) < 60
        remount(tmp_path / "home", "size=64m")
        again = hermes(tmp_path / "home", *command(tmp_path, provider, "--concurrency", "4"))
        assert again.returncode == 0, again.stderr
        with Reader(db_path(tmp_path / "home")) as reader:
            assert reader.count(Filter(run_id="run", stop_reason="completed")) >= 60
    assert len(rows(tmp_path)) == 60


def last_lines(err: str) -> tuple[str, str]:
    error, fix = err.strip().splitlines()[-2:]
    assert error.startswith("error: ") and fix.startswith("  fix: "), err
    return error, fix


def test_an_output_folder_that_cannot_be_is_refused_before_anything_is_paid(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    (tmp_path / "data").write_text("a file, not a folder")
    with FakeProvider(solve) as provider:
        error, fix = failure(hermes(tmp_path, *command(tmp_path, provider)), 2)
        assert provider.posts == []
    assert str(tmp_path / "data") in error
    assert "--output-dir" in fix


def test_a_write_protected_output_folder_is_refused_before_anything_is_paid(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    with disk(tmp_path / "data", "1m"), FakeProvider(solve) as provider:
        remount(tmp_path / "data", "ro")
        error, fix = failure(hermes(tmp_path, *command(tmp_path, provider)), 2)
        assert provider.posts == []
    assert "Read-only file system" in error and str(tmp_path / "data") in error
    assert "--output-dir" in fix


# Money and orders


def test_the_money_runs_out_before_it_is_overspent_and_more_of_it_continues(tmp_path: Path) -> None:
    write_tasks(tmp_path, 10)
    flags = ("--num-workers", "1", "--max-tokens", "5")
    with FakeProvider(solve) as provider:
        cheap = hermes(tmp_path, *command(tmp_path, provider, *flags, "--max-cost", "0.1"), env=PRICED)
        assert cheap.returncode == 1
        error, fix = last_lines(cheap.stderr)
        assert "$0.1" in error and "--max-cost" in fix
        spent = len(provider.posts)
        assert 0.1 - CALL_USD < spent * CALL_USD <= 0.1 + CALL_USD
        rich = hermes(tmp_path, *command(tmp_path, provider, *flags, "--max-cost", "10"), env=PRICED)
        assert rich.returncode == 0, rich.stderr
    assert len(rows(tmp_path)) == 10
    assert {round(row["cost_usd"], 6) for row in rows(tmp_path)} == {2 * CALL_USD}


def test_what_a_dead_worker_had_left_goes_to_the_next_one(tmp_path: Path) -> None:
    write_tasks(tmp_path, 6)
    (tmp_path / "poison.py").write_text(
        "import os\n"
        "def score(ctx):\n"
        "    if 'Compute 3 ' in ctx.row.prompts[0]: os.kill(os.getpid(), 9)\n"
        "    return 1.0\n"
    )
    flags = ("--reward", f"{tmp_path / 'poison.py'}:score", "--max-cost", "0.9")
    with FakeProvider(solve) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, *flags), env=PRICED)
        assert len(provider.posts) * CALL_USD <= 0.9
    assert "used up" not in done.stderr
    assert len(rows(tmp_path)) == 5
    assert "WorkerDied: 3 times" in rows(tmp_path, file="failed.jsonl")[0]["cause"]


def test_a_budget_without_a_price_is_refused(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    with FakeProvider(solve) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--max-cost", "1"))
        assert provider.posts == []
    error, fix = failure(done, 2)
    assert "the price of custom/m is unknown" in error
    assert "prices" in fix


def test_sigterm_leaves_no_process_behind_and_a_run_that_continues(tmp_path: Path) -> None:
    if reason := usable("bubblewrap"):
        pytest.skip(reason)
    write_rows(tmp_path, *({"prompt": f"sleep 0.{number % 10 + 1}; echo {number}"} for number in range(20)))
    flags = ("--toolsets", "terminal", "--sandbox", "bubblewrap", "--concurrency", "6")
    with FakeProvider(lambda body: delayed(0.05, look_around(body))) as provider:
        process = start(tmp_path, *command(tmp_path, provider, *flags))
        while len(provider.posts) < 8:
            time.sleep(0.01)
        workers = workers_of(process.pid)
        family = descendants(process.pid)
        assert set(workers) < set(family)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 1, err
        assert json.loads(out.splitlines()[-1])["stopped"]
        wait_gone(family)
        again = hermes(tmp_path, *command(tmp_path, provider, *flags))
        assert again.returncode == 0, again.stderr
    answers = [row["conversations"][-1]["value"].strip() for row in rows(tmp_path)]
    assert answers == [str(number) for number in range(20)]


def descendants(pid: int) -> dict[int, str]:
    """Every process below `pid`, with the time it started, which tells it from a later one of its number."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (found := stat_of(int(entry.name))):
            parents[int(entry.name)] = found
    below = {pid}
    while more := {child for child, (parent, _) in parents.items() if parent in below} - below:
        below |= more
    return {child: parents[child][1] for child in below - {pid}}


def stat_of(pid: int) -> tuple[int, str] | None:
    """(parent, start time); None for one that is gone or only waits to be buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[1]), fields[19])


def wait_gone(family: dict[int, str]) -> None:
    deadline = time.monotonic() + 30
    while alive := [pid for pid, began in family.items() if (found := stat_of(pid)) and found[1] == began]:
        assert time.monotonic() < deadline, f"still running: {alive}"
        time.sleep(0.05)
