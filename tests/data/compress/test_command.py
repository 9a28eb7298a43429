"""`hermes compress` as a user runs it: inputs, outputs, exit codes, interruptions, full disks."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hermes.cli.compress.run import analysis_text, parse_query
from hermes.cli.older import convert_switches
from hermes.data.compress.run.inputs import file_items, find_files
from hermes.errors import UsageError
from hermes.store import Reader
from tests.cli.process import PASSED_ON, failure, hermes
from tests.data.compress import made
from tests.data.compress.summary_cases import summaries
from tests.fakes.provider import FakeProvider, Reply, held
from tests.recipes.scripts import RECIPES
from tests.waiting import wait_until, wait_until_ended


def compress(home: Path, folder: Path, *flags: str) -> Any:
    return hermes(home, "compress", "--tokenizer", str(folder), *flags)


def contents(folder: Path, stem: str) -> dict[str, bytes]:
    """What a run wrote, without the clock times."""
    names = [f"{stem}.jsonl", f"{stem}_kept_aside.jsonl", f"{stem}_bad_rows.jsonl"]
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def test_rows_that_cannot_be_read_are_counted_with_the_first_reason_and_no_share_of_nothing(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"conversations": [\n')
    done = compress(tmp_path, tokenizer_folder, "--input", str(tmp_path / "rows.jsonl"))
    assert done.returncode == 1
    assert "could not be read: 1" in done.stdout and "the first: rows.jsonl:1: not JSON" in done.stdout
    assert "%" not in done.stdout


def test_good_rows_are_written_though_others_are_bad_and_the_exit_code_says_so(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    good = json.dumps(made.session_row(0)).encode()
    small = json.dumps(made.session_row(1, exchanges=1, lines=3)).encode()
    alien = json.dumps({"conversations": [{"from": "robot", "value": "x"}]}).encode()
    stuck = json.dumps({"conversations": [{"from": "human", "value": "x " * 9000}]}).encode()
    rows.write_bytes(
        b"\n".join([good, b'{"conversations": [', small, alien, b"\xff\xfe{}", b"", stuck]) + b"\n"
    )
    before = rows.read_bytes()
    done = compress(tmp_path, tokenizer_folder, "--input", str(rows), "--target-max-tokens", "4000", "--json")
    assert done.returncode == 1
    assert rows.read_bytes() == before, "originals are untouched"
    assert [
        row["id"] != row.get("parent_id") for row in made.read_jsonl(tmp_path / "rows_compressed.jsonl")
    ] == [
        True,
        True,
    ]
    reasons = [row["reason"] for row in made.read_jsonl(tmp_path / "rows_compressed_bad_rows.jsonl")]
    assert [reason.partition(": ")[0] for reason in reasons] == [
        "rows.jsonl:2",
        "rows.jsonl:4",
        "rows.jsonl:5",
    ]
    assert "not JSON" in reasons[0] and "unknown role 'robot'" in reasons[1] and "not UTF-8" in reasons[2]
    (aside,) = made.read_jsonl(tmp_path / "rows_compressed_kept_aside.jsonl")
    assert "the target is 4000" in aside["kept_aside"] and aside["compression_metrics"]["still_over_limit"]
    summary = json.loads((tmp_path / "rows_compressed_metrics.json").read_text())["summary"]
    assert summary == {
        "total_trajectories": 6,
        "trajectories_compressed": 1,
        "trajectories_skipped_under_target": 1,
        "trajectories_still_over_limit": 1,
        "trajectories_failed": 3,
        "compression_rate": pytest.approx(1 / 3, abs=1e-6),
    }
    assert not (tmp_path / "rows_compressed.jsonl.work").exists()


def test_compressing_the_output_again_changes_no_byte(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = made.write_jsonl(tmp_path / "rows.jsonl", [made.session_row(n, exchanges=n) for n in (1, 9, 12)])
    flags = ("--target-max-tokens", "3500")
    assert compress(tmp_path, tokenizer_folder, "--input", str(rows), *flags).returncode == 0
    first = tmp_path / "rows_compressed.jsonl"
    again = compress(tmp_path, tokenizer_folder, "--input", str(first), *flags)
    assert again.returncode == 0
    assert (tmp_path / "rows_compressed_compressed.jsonl").read_bytes() == first.read_bytes()


def test_large_inputs_go_through_processes_and_give_the_same_rows(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    one = [made.session_row(n, exchanges=12, lines=160) for n in range(2)]
    small = made.write_jsonl(tmp_path / "small.jsonl", one)
    many = made.write_jsonl(tmp_path / "many.jsonl", one * 20)
    assert many.stat().st_size > 4_000_000
    for rows in (small, many):
        assert compress(tmp_path, tokenizer_folder, "--input", str(rows)).returncode == 0
    expected = (tmp_path / "small_compressed.jsonl").read_text()
    assert (tmp_path / "many_compressed.jsonl").read_text() == expected * 20


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = made.write_jsonl(tmp_path / "rows.jsonl", [made.session_row(n, exchanges=n) for n in range(1, 13)])
    flags = ("--input", str(rows), "--target-max-tokens", "3000", "--dry-run")
    before = sorted(tmp_path.iterdir())
    facts = json.loads(compress(tmp_path, tokenizer_folder, *flags, "--json").stdout)
    shown = analysis_text(facts)
    assert sorted(tmp_path.iterdir()) == before
    assert facts["rows"] == 12 == sum(each["rows"] for each in facts["histogram"])
    assert facts["over_target"] == facts["would_fit"] + facts["would_be_kept_aside"] > 5
    assert f"{facts['tokens']} tokens" in shown and "###" in shown and shown.endswith(" over")


def test_rows_whose_last_turns_are_over_the_target_fit_and_the_figures_say_why(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    count = 20
    rows = made.write_jsonl(
        tmp_path / "rows.jsonl", [made.session_row(n, exchanges=14, lines=170) for n in range(count)]
    )
    flags = ("--input", str(rows), "--target-max-tokens", "4000")
    strict = compress(tmp_path, tokenizer_folder, *flags, "--strict-protect", "--json")
    assert strict.returncode == 1
    summary = json.loads(strict.stdout)["summary"]
    assert (summary["trajectories_still_over_limit"], summary["trajectories_compressed"]) == (count, 0)
    done = compress(tmp_path, tokenizer_folder, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} rows had {2 * count} tool outputs of protected turns folded" in done.stdout
    assert not (tmp_path / "rows_compressed_kept_aside.jsonl").exists()
    figures = json.loads((tmp_path / "rows_compressed_metrics.json").read_text())
    assert figures["protected"] == {"rows": count, "outputs_folded": 2 * count}
    assert figures["kept"]["decisions"] == 1.0
    written = made.read_jsonl(tmp_path / "rows_compressed.jsonl")
    assert len(written) == count
    assert all(row["compression_metrics"]["compressed_tokens"] <= 4000 for row in written)
    facts = json.loads(compress(tmp_path, tokenizer_folder, *flags, "--dry-run", "--json").stdout)
    assert (facts["would_fit"], facts["would_fold_protected"], facts["would_be_kept_aside"]) == (
        count,
        count,
        0,
    )
    assert f"{count} would fit only with outputs of protected turns folded" in analysis_text(facts)


def test_a_sample_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    rows = made.write_jsonl(tmp_path / "rows.jsonl", [made.session_row(n, 1, 3) for n in range(200)])
    files = find_files(str(rows))
    assert files is not None

    def drawn(seed: int) -> list[str]:
        return [item.where for item in file_items(files, None, 30.0, seed)]

    assert 35 < len(drawn(1)) < 85
    assert drawn(1) == drawn(1) != drawn(2)


def test_a_folder_gives_each_row_once(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    made.write_jsonl(folder / "batch_1.jsonl", [made.session_row(0), made.session_row(1)])
    made.write_jsonl(folder / "batch_2.jsonl", [made.session_row(1), made.session_row(2)])
    made.write_jsonl(folder / "failed.jsonl", [{"key": "x"}])
    assert compress(tmp_path, tokenizer_folder, "--input", str(folder)).returncode == 0
    parents = [
        row.get("parent_id", row["id"])
        for row in made.read_jsonl(tmp_path / "shards_compressed/trajectories.jsonl")
    ]
    assert parents == ["row-0", "row-1", "row-2"]
    made.write_jsonl(folder / "trajectories.jsonl", [made.session_row(7)])
    assert compress(tmp_path, tokenizer_folder, "--input", str(folder)).returncode == 0
    assert len(made.read_jsonl(folder / "trajectories_compressed.jsonl")) == 1, "the merged file alone"


def test_wrong_inputs_and_tokenizers_are_said_to_be_that(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = made.write_jsonl(tmp_path / "rows.jsonl", [made.session_row()])
    error, fix = failure(compress(tmp_path, tokenizer_folder, "--input", "nowhere"), 2)
    assert "no file, no folder, no run" in error and "query" in fix
    error, _ = failure(compress(tmp_path, tokenizer_folder, "--input", str(rows), "--output", str(rows)), 2)
    assert "is the input" in error
    error, _ = failure(compress(tmp_path, tokenizer_folder, "--input", "run=x"), 2)
    assert "--output is missing" in error
    error, fix = failure(compress(tmp_path, tokenizer_folder), 2)
    assert "no input is named" in error and "hermes compress FILE" in fix
    error, fix = failure(compress(tmp_path, tokenizer_folder, str(rows), "--input", str(rows)), 2)
    assert "named twice" in error and fix == "name it once"
    error, fix = failure(hermes(tmp_path, "compress", "--input", str(rows), "--tokenizer", str(tmp_path)), 2)
    assert "there is no tokenizer" in error and "hermes/smollm2" in fix
    with Reader(tmp_path / "hermes.db") as reader, pytest.raises(UsageError, match="is not a condition"):
        parse_query("colour=red", reader)


def test_the_older_command_line_and_configuration_are_understood(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    data = tmp_path / "data" / "my_run"
    data.mkdir(parents=True)
    made.write_jsonl(data / "trajectories.jsonl", [made.session_row(0), made.session_row(1)])
    config = tmp_path / "trajectory_compression.yaml"
    config.write_text(
        f"tokenizer:\n  name: {tokenizer_folder}\n  trust_remote_code: true\n"
        "compression:\n  target_max_tokens: 99999\n  summary_target_tokens: 400\n"
        "protected_turns:\n  first_system: true\n  last_n_turns: 2\n"
        "summarization:\n  model: x/y\n  max_retries: 3\noutput:\n  add_summary_notice: true\n"
        "processing:\n  num_workers: 4\n  max_concurrent_requests: 50\nmetrics:\n  enabled: true\n"
    )
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    command = ["--input=data/my_run/trajectories.jsonl", "--target_max_tokens=4000", f"--config={config}"]
    done = subprocess.run(
        [sys.executable, str(RECIPES / "trajectory_compressor.py"), *command, "--dry_run=False"],
        env={**environ, "HERMES_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = made.read_jsonl(data / "trajectories_compressed.jsonl")
    assert [row["compression_metrics"]["target_max_tokens"] for row in rows] == [4000, 4000]
    assert convert_switches(
        ["--dry_run=True", "--input=x", "--resume=false", "--dry-run", "False", "--input", "True"],
        frozenset({"dry-run", "resume"}),
    ) == ["--dry_run", "--input=x", "--input", "True"]
    config.write_text("compression:\n  colour: red\n")
    bad = compress(tmp_path, tokenizer_folder, "--input", str(data), "--config", str(config))
    assert "unknown key 'compression.colour'" in failure(bad, 2)[0]


def start(home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    command = [sys.executable, "-m", "hermes", "compress", *arguments]
    return subprocess.Popen(command, env={**environ, "HERMES_HOME": str(home)}, stderr=subprocess.DEVNULL)


def finished_rows(work: Path) -> int:
    path = work / "rows.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_rows(process: subprocess.Popen[bytes], work: Path, count: int) -> None:
    wait_until(lambda: finished_rows(work) >= count or process.poll() is not None)


def test_a_killed_and_interrupted_run_goes_on_to_the_same_output_and_pays_for_nothing_twice(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    rows = [made.session_row(n, exchanges=7) for n in range(14)]
    killed = made.write_jsonl(tmp_path / "killed.jsonl", rows)
    whole = made.write_jsonl(tmp_path / "whole.jsonl", rows)
    work = tmp_path / "killed_compressed.jsonl.work"
    flags = ("--tokenizer", str(tokenizer_folder), "--target-max-tokens", "3000", "--strategy", "summarise")
    stops = {4: threading.Event(), 9: threading.Event()}

    def answer(body: dict[str, Any]) -> Reply:
        """With so many rows finished the next answer waits until the run has been stopped."""
        due = [stop for count, stop in stops.items() if finished_rows(work) >= count and not stop.is_set()]
        return held(due[0], summaries(body)) if due else summaries(body)

    with FakeProvider(answer) as provider:
        model = ("--model", "m", "--base-url", provider.base_url, "--concurrency", "2")
        first = start(tmp_path / "home", "--input", str(killed), *flags, *model)
        wait_for_rows(first, work, 4)
        first.send_signal(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL and 4 <= finished_rows(work) < 14
        stops[4].set()
        with (work / "rows.jsonl").open("ab") as file:
            file.write(b'{"kind": "row", "li')  # as a kill in the middle of a write leaves it
        second = start(tmp_path / "home", "--input", str(killed), *flags, *model, "--resume")
        wait_for_rows(second, work, 9)
        second.send_signal(signal.SIGINT)
        stops[9].set()
        assert second.wait() == 130 and not (tmp_path / "killed_compressed.jsonl").exists()
        done = hermes(tmp_path / "home", "compress", "--input", str(killed), *flags, *model, "--resume")
        assert done.returncode == 0, done.stderr
        asked = [request.json["messages"][-1]["content"] for request in provider.posts]
        assert len(asked) - len(set(asked)) <= 4, "only what was in flight at the two ends"
        assert hermes(tmp_path / "home2", "compress", "--input", str(whole), *flags, *model).returncode == 0
    assert not work.exists()
    resumed, unbroken = (contents(tmp_path, f"{name}_compressed") for name in ("killed", "whole"))
    assert list(resumed.values()) == list(unbroken.values())


def test_a_full_disk_is_reported_and_the_run_goes_on_once_there_is_room(
    tmp_path: Path, tokenizer_folder: Path, small_disk: Path
) -> None:
    rows = made.write_jsonl(tmp_path / "rows.jsonl", [made.session_row(n) for n in range(60)])
    output = small_disk / "out.jsonl"
    flags = ("--input", str(rows), "--output", str(output), "--target-max-tokens", "6000")
    done = compress(tmp_path, tokenizer_folder, *flags)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr and "--resume" in done.stderr
    assert not output.exists()
    assert finished_rows(small_disk / "out.jsonl.work") > 5
    other = (*flags[:-1], "5000", "--resume")
    assert "target_max_tokens" in failure(compress(tmp_path, tokenizer_folder, *other), 2)[0]
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    again = compress(tmp_path, tokenizer_folder, *flags, "--resume", "--json")
    assert again.returncode == 0, again.stderr
    assert len(made.read_jsonl(output)) == 60


def test_two_runs_do_not_write_the_same_output(tmp_path: Path, tokenizer_folder: Path) -> None:
    import fcntl

    rows = made.write_jsonl(tmp_path / "rows.jsonl", [made.session_row()])
    work = tmp_path / "rows_compressed.jsonl.work"
    work.mkdir()
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error, _ = failure(compress(tmp_path, tokenizer_folder, "--input", str(rows)), 2)
    assert "another process is writing" in error


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_workers_of_a_killed_run_end_with_it(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = made.write_jsonl(tmp_path / "rows.jsonl", [made.session_row(n, lines=200) for n in range(60)])
    assert rows.stat().st_size > 4_000_000  # large enough for processes
    flags = ("--input", str(rows), "--tokenizer", str(tokenizer_folder), "--target-max-tokens", "3000")
    process = start(tmp_path / "home", *flags)
    wait_for_rows(process, tmp_path / "rows_compressed.jsonl.work", 1)
    workers = children(process.pid)
    assert len(workers) > 1
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until_ended(workers)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_runs_killed_at_random_moments_change_no_byte(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = [made.session_row(n, exchanges=8, lines=60) for n in range(200)]
    killed = made.write_jsonl(tmp_path / "killed.jsonl", rows)
    whole = made.write_jsonl(tmp_path / "whole.jsonl", rows)
    flags = ("--tokenizer", str(tokenizer_folder), "--target-max-tokens", "3000")
    assert hermes(tmp_path / "home", "compress", "--input", str(whole), *flags).returncode == 0
    unbroken = list(contents(tmp_path, "whole_compressed").values())
    output, rng, kills = tmp_path / "killed_compressed.jsonl", random.Random(5), 0
    work = output.with_name(f"{output.name}.work")
    while kills < 50 or work.exists() or not output.exists():
        process = start(tmp_path / "home", "--input", str(killed), *flags, "--resume")
        if kills < 50:
            wait_for_rows(process, work, finished_rows(work) + rng.randrange(12))
            time.sleep(rng.random() / 20)
            process.send_signal(signal.SIGKILL)
        code = process.wait()
        kills += code == -signal.SIGKILL
        if code == 0 and kills < 50:  # it was faster than the kill: once more from the start
            assert list(contents(tmp_path, "killed_compressed").values()) == unbroken
            output.unlink()
    assert list(contents(tmp_path, "killed_compressed").values()) == unbroken
    assert not work.exists()
