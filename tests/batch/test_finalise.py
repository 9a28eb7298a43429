"""The files of a run: complete, in plan order, the same bytes every time."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

from hermes.batch.journal import SampleEntry
from hermes.batch.output.finalise import finalise
from hermes.batch.tasks import BadRow
from tests.batch.made import contents, dataset, done, failed, filtered, finish, lines, spec, write

OUTPUTS = {
    "trajectories.jsonl",
    "filtered.jsonl",
    "failed.jsonl",
    "bad_rows.jsonl",
    "statistics.json",
    "README.md",
}


def keys_of(path: Path) -> list[tuple[str, int]]:
    return [(each["key"], each["sample"]) for each in lines(path)]


def test_rows_stand_in_plan_order_whatever_the_order_of_completion(tmp_path: Path) -> None:
    finish(
        tmp_path, [done("b", 1), done("a", 1)], [done("b", 0), done("a", 0)], keys="ab", samples_per_prompt=2
    )
    assert keys_of(tmp_path / "trajectories.jsonl") == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_two_finalisations_give_the_same_bytes(tmp_path: Path) -> None:
    entries = [
        done("b", reward=1.0, metadata={"ü": [1]}),
        failed("c", "ProviderError: down"),
        filtered("a", "no"),
    ]
    finish(tmp_path, entries, keys="abc")
    first = contents(tmp_path)
    finish(tmp_path, keys="abc")
    assert contents(tmp_path) == first
    assert set(first) == OUTPUTS | {"parquet/train-00000-of-00001.parquet"}


def test_an_interrupted_run_gives_the_bytes_of_an_unbroken_one(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(whole, [done("a"), done("b"), filtered("c", "no reasoning"), done("d")], keys="abcd")
    finish(
        broken, [filtered("c", "no reasoning")], [failed("a", "SandboxError: gone"), done("d")], keys="abcd"
    )
    finish(broken, [], [], [done("b")], [done("a")], keys="abcd")
    ours, theirs = contents(broken), contents(whole)
    statistics = [json.loads(each.pop("statistics.json")) for each in (ours, theirs)]
    assert ours == theirs
    assert [each.pop("timing")["failed_tries"] for each in statistics] == [1, 0]
    assert statistics[0] == statistics[1]


def test_a_torn_last_line_is_passed_over_and_its_sample_is_owed(tmp_path: Path) -> None:
    write(tmp_path, [done("a"), done("b")])
    path = tmp_path / "journal" / "000.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    summary = finalise(tmp_path, spec(), dataset("a", "b"))
    assert (summary.rows, summary.not_run) == (1, 1)
    assert keys_of(tmp_path / "failed.jsonl") == [("b", 0)]


def test_a_sample_that_two_workers_report_counts_once(tmp_path: Path) -> None:
    finish(tmp_path, [done("a", id="first")], [done("a", id="second"), filtered("a", "late")], keys="a")
    assert [each["id"] for each in lines(tmp_path / "trajectories.jsonl")] == ["first"]
    assert lines(tmp_path / "filtered.jsonl") == []


def test_filtered_rows_are_kept_aside_with_the_reason(tmp_path: Path) -> None:
    summary = finish(tmp_path, [filtered("a", "reward under 0.5", reward=0.25), done("b")], keys="ab")
    (aside,) = lines(tmp_path / "filtered.jsonl")
    assert (aside["key"], aside["filtered"], aside["reward"]) == ("a", "reward under 0.5", 0.25)
    assert "filtered" not in lines(tmp_path / "trajectories.jsonl")[0]
    assert (summary.rows, summary.filtered, summary.statistics["filtered"]) == (1, 1, {"reward under 0.5": 1})


def test_samples_still_owed_say_how_often_and_why_they_failed(tmp_path: Path) -> None:
    tries = [
        failed("a", "ProviderError: busy", trajectory_id="T1"),
        failed("a", "SandboxError: gone", trajectory_id="T2"),
    ]
    summary = finish(tmp_path, tries, [failed("b", "WorkerDied: 3 times")], keys="abc")
    assert lines(tmp_path / "failed.jsonl") == [
        {"key": "a", "sample": 0, "tries": 2, "cause": "SandboxError: gone", "trajectory_ids": ["T1", "T2"]},
        {"key": "b", "sample": 0, "tries": 1, "cause": "WorkerDied: 3 times", "trajectory_ids": []},
        {"key": "c", "sample": 0, "tries": 0, "cause": None, "trajectory_ids": []},
    ]
    assert (summary.failed, summary.not_run) == (2, 1)
    assert summary.statistics["failed"] == {"SandboxError": 1, "WorkerDied": 1}


def test_a_failure_that_went_well_later_is_history(tmp_path: Path) -> None:
    summary = finish(tmp_path, [failed("a", "ProviderError: busy"), done("a")], keys="a")
    assert (tmp_path / "failed.jsonl").read_text() == ""
    assert summary.statistics["failed"] == {}
    assert summary.statistics["timing"]["failed_tries"] == 1


def test_dedupe_moves_repeated_conversations_and_does_not_mind_call_ids(tmp_path: Path) -> None:
    def saying(key: str, sample: int, call_id: str, result: str) -> SampleEntry:
        response = json.dumps({"tool_call_id": call_id, "name": "t", "content": result})
        turn = {"from": "tool", "value": f"<tool_response>\n{response}\n</tool_response>"}
        return done(key, sample, conversations=[{"from": "human", "value": "same"}, turn])

    entries = [
        saying("a", 0, "c1", "4"),
        saying("a", 1, 'c"2', "4"),
        saying("b", 0, "c1", "5"),
        saying("b", 1, "c9", "4"),
    ]
    for on, kept in ((True, [("a", 0), ("b", 0)]), (False, [("a", 0), ("a", 1), ("b", 0), ("b", 1)])):
        folder = tmp_path / str(on)
        finish(folder, entries, keys="ab", samples_per_prompt=2, filters={"dedupe": on})
        assert keys_of(folder / "trajectories.jsonl") == kept
    moved = lines(tmp_path / "True" / "filtered.jsonl")
    assert [each["filtered"] for each in moved] == ["duplicate of a/0", "duplicate of a/0"]
    assert json.loads((tmp_path / "True" / "statistics.json").read_text())["filtered"] == {"duplicate": 2}


def test_bad_rows_of_the_input_are_listed_with_their_lines(tmp_path: Path) -> None:
    data = dataset("a", bad=[BadRow(2, "not JSON: …"), BadRow(7, "neither 'prompt' nor 'messages'")])
    summary = finalise(write(tmp_path, [done("a")]), spec(), data)
    assert lines(tmp_path / "bad_rows.jsonl")[1] == {"line": 7, "reason": "neither 'prompt' nor 'messages'"}
    assert summary.bad_rows == summary.statistics["bad_rows"] == 2


def test_every_offered_tool_is_counted_and_a_hallucinated_one_is_kept_apart(tmp_path: Path) -> None:
    stats = {"web": {"count": 2, "success": 1, "failure": 1}, "wbe": {"count": 1, "success": 0, "failure": 1}}
    finish(tmp_path, [done("a", tool_names=["web", "file"], tool_stats=stats)], keys="a")
    (got,) = lines(tmp_path / "trajectories.jsonl")
    assert got["tool_stats"] == {"web": stats["web"], "file": {"count": 0, "success": 0, "failure": 0}}
    assert got["unknown_tools"] == {"wbe": stats["wbe"]}


def test_rows_have_the_same_fields_whatever_is_known_and_lose_none(tmp_path: Path) -> None:
    finish(tmp_path, [done("a"), done("b", reward=1.0, metadata={"x": 1}, novelty=7)], keys="ab")
    plain, rich = lines(tmp_path / "trajectories.jsonl")
    assert list(rich) == [*plain, "novelty"]
    assert (plain["reward"], plain["metadata"], rich["novelty"]) == (None, {}, 7)


def test_a_paid_row_whose_task_left_the_dataset_is_kept_aside(tmp_path: Path) -> None:
    entries = [done("gone"), done("a", 0), done("a", 1), failed("gone too", "x")]
    summary = finish(tmp_path, entries, keys="a")
    assert keys_of(tmp_path / "trajectories.jsonl") == [("a", 0)]
    assert keys_of(tmp_path / "filtered.jsonl") == [("a", 1), ("gone", 0)]
    assert summary.statistics["filtered"] == {"no longer in the dataset": 2}
    assert summary.statistics["samples"]["planned"] == 1


def test_lone_surrogates_and_odd_characters_come_out_as_text_that_loaders_accept(tmp_path: Path) -> None:
    value = "a\ud800b \ud83d\ude00 \x00 \u2028 ✓"
    finish(tmp_path, [done("a", conversations=[{"from": "human", "value": value}])], keys="a")
    (got,) = lines_of_bytes(tmp_path / "trajectories.jsonl")
    assert got["conversations"][0]["value"] == "a\ufffdb \U0001f600 \x00 \u2028 ✓"


def lines_of_bytes(path: Path) -> list[dict[str, list[dict[str, str]]]]:
    return [json.loads(line) for line in path.read_bytes().decode("utf-8", "strict").rstrip("\n").split("\n")]


def test_what_a_killed_finalisation_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".parquet.x1y2z3w4").mkdir(parents=True)
    for name in (".trajectories.jsonl.ab12cd34", ".parquet.x1y2z3w4/0", ".mine"):
        (tmp_path / name).write_text("half")
    finish(tmp_path, [done("a")], keys="a")
    assert [path.name for path in tmp_path.glob(".*")] == [".mine"]


def test_a_full_disk_is_reported_and_leaves_the_earlier_files(tmp_path: Path) -> None:
    finish(tmp_path, [done("a")], keys="a")
    before = contents(tmp_path)
    write(tmp_path, [], [done("b", conversations=[{"from": "human", "value": "x" * 50_000}])])
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from hermes.errors import HermesError\n"
        "from hermes.batch.output.finalise import finalise\n"
        "from tests.batch.made import dataset, spec\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n"
        "    finalise(Path(sys.argv[1]), spec(), dataset('a', 'b'))\n"
        "except HermesError as error:\n"
        "    sys.exit(f'{error.message}|{error.hint}')\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == 1
    assert f"cannot write {tmp_path}" in ended.stderr
    assert "File too large|" in ended.stderr
    assert contents(tmp_path) == before


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    size, count = 300_000, 150
    text = "word " * (size // 5)
    keys = [f"k{number:03}" for number in range(count)]
    write(tmp_path, [done(key, conversations=[{"from": "human", "value": key + text}]) for key in keys])
    finalise(tmp_path, spec(), dataset(*keys[:1]))  # imports are not what is measured
    tracemalloc.start()
    finalise(tmp_path, spec(), dataset(*keys))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(lines(tmp_path / "trajectories.jsonl")) == count
    assert peak < size * count * 0.8, f"{peak / 1e6:.0f} MB for a journal of {size * count / 1e6:.0f} MB"


def test_an_empty_journal_gives_empty_files_and_a_schema(tmp_path: Path) -> None:
    summary = finish(tmp_path, keys="a")
    assert (summary.rows, summary.not_run) == (0, 1)
    assert set(contents(tmp_path)) == OUTPUTS | {"parquet/train-00000-of-00001.parquet"}
    assert summary.statistics["reward"] is None


def test_marks_of_redaction_are_counted(tmp_path: Path) -> None:
    told = [{"from": "tool", "value": "key is [REDACTED:API_KEY]"}]
    summary = finish(tmp_path, [done("a", conversations=told), done("b")], keys="ab")
    assert summary.statistics["redacted_rows"] == 1
