"""Runs at the edges: odd text, odd rows, odd datasets."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hermes.batch.journal import read_journal
from hermes.config.paths import db_path
from hermes.sandbox import unusable_reason
from hermes.store import Filter, Reader
from tests.batch.drive import command, last_lines, look_around, rows, solve, start, write_rows, write_tasks
from tests.cli.process import failure, hermes
from tests.fakes.provider import FakeProvider, Reply, text


def echo(body: dict[str, Any]) -> Reply:
    return text(f"You said: {body['messages'][-1]['content']}")


def shown(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in body["messages"]]


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


def test_a_row_s_files_lie_in_the_workspace_and_its_tools_work_in_its_directory(tmp_path: Path) -> None:
    if reason := unusable_reason("bubblewrap"):
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
    if unusable_reason("docker") is None:
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


def test_a_torn_last_line_is_owed_again_and_nothing_else_is(tmp_path: Path) -> None:
    write_tasks(tmp_path, 6)
    flags = ("--num-workers", "1", "--concurrency", "1")
    with FakeProvider(solve) as provider:
        assert hermes(tmp_path, *command(tmp_path, provider, *flags)).returncode == 0
        (segment,) = (tmp_path / "data/run/journal").glob("*.jsonl")
        lines = segment.read_bytes().splitlines(keepends=True)
        segment.write_bytes(b"".join(lines[:4]) + lines[4][: len(lines[4]) // 2])
        again = hermes(tmp_path, *command(tmp_path, provider, *flags))
        assert len(provider.posts) == 12, "the samples are taken over from the store"
    assert again.returncode == 0, again.stderr
    assert [row["conversations"][-1]["value"] for row in rows(tmp_path)] == [
        f"The answer is {2 * number}." for number in range(6)
    ]
    assert len(list(read_journal(tmp_path / "data/run/journal"))) == 6


@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_entries_that_disappear_from_the_journal_during_the_run_are_run_again(
    tmp_path: Path, damage: str
) -> None:
    """Every planned sample is a row: what the workers reported does not count, what the journal has does."""
    write_tasks(tmp_path, 20)
    damaged: list[int] = []

    def damage_the_journal(body: dict[str, Any]) -> Reply:
        segments = list((tmp_path / "data/run/journal").glob("*.jsonl"))
        content = {path: path.read_bytes() for path in segments}
        if not damaged and sum(data.count(b"\n") for data in content.values()) >= 8:
            for path, data in content.items():
                damaged.append(len(data))
                if damage == "truncated":
                    os.truncate(path, len(data) // 2)
                else:
                    with path.open("r+b") as file:
                        file.seek(len(data) // 3)
                        file.write(b"\0" * 20)
        return solve(body)

    with FakeProvider(damage_the_journal) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--concurrency", "2"))
        assert len(provider.posts) == 40, "the lost samples are taken over from the store"
    assert damaged
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["planned"], report["finished"], report["rows"], report["failed"]) == (20, 20, 20, {})
    assert [row["conversations"][-1]["value"] for row in rows(tmp_path)] == [
        f"The answer is {2 * number}." for number in range(20)
    ]


def test_entries_that_disappear_every_time_are_failures(tmp_path: Path) -> None:
    write_tasks(tmp_path, 4)
    with FakeProvider(solve) as provider:
        process = start(tmp_path, *command(tmp_path, provider, "--num-workers", "1", "--concurrency", "1"))
        while process.poll() is None:
            for path in (tmp_path / "data/run/journal").glob("*.jsonl"):
                os.truncate(path, 0)
            time.sleep(0.001)
        out, _ = process.communicate()
    assert process.returncode == 1
    report = json.loads(out)
    assert report["rows"] == report["finished"] < 4
    assert report["failed"] == {"JournalDamaged": 4 - report["finished"]}
    assert len(rows(tmp_path, file="failed.jsonl")) == 4 - report["finished"]
