"""Stores with flipped, zeroed and missing bytes: noticed before a write, reported in a sentence, rescued."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from hermes.core import Message, Reward, Trajectory
from hermes.core.rating import RatingDraft
from hermes.errors import HermesError, StoreError, UsageError
from hermes.store import Reader, Writer
from hermes.store.upkeep import maintain
from hermes.store.upkeep.salvage import salvage
from tests import records

TRAJECTORIES = 60


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of several hundred pages, closed in order."""
    path = tmp_path_factory.mktemp("whole") / "hermes.db"
    rng = random.Random(7)
    with Writer(path) as writer:
        for number in range(TRAJECTORIES):
            words = [f"word{rng.randrange(10_000)}" for _ in range(rng.randrange(20, 900))]
            messages = [Message.user(f"task {number} {' '.join(words)}"), Message.assistant(words[-1])]
            name = records.record(writer, messages)
            writer.add_rating(RatingDraft(name, "good", "ann", comment="kept").build()).result()
            writer.add_reward(Reward(name, 1.0, "test")).result()
        writer.add_metrics("run", 1, {"reward": 0.5}).result()
    return path


@pytest.fixture(scope="module")
def originals(whole: Path) -> dict[str, Trajectory]:
    with Reader(whole) as reader:
        return {trajectory.header.id: trajectory for trajectory in reader.trajectories()}


def flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(60):
        data[rng.randrange(100, len(data))] ^= 1 << rng.randrange(8)


def zero_pages(data: bytearray, rng: random.Random) -> None:
    for _ in range(5):
        page = rng.randrange(1, len(data) // 4096) * 4096
        data[page : page + 4096] = bytes(4096)


def noise(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(4096, len(data) - 9000)
    data[start : start + 8192] = rng.randbytes(8192)


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(5000, len(data)) :]


def swap_pages(data: bytearray, rng: random.Random) -> None:
    first, second = (rng.randrange(1, len(data) // 4096) * 4096 for _ in range(2))
    data[first : first + 4096], data[second : second + 4096] = (
        data[second : second + 4096],
        data[first : first + 4096],
    )


DAMAGES: list[Callable[[bytearray, random.Random], None]] = [flip, zero_pages, noise, cut, swap_pages]


def read_everything(path: Path) -> None:
    """As the commands that list, show, search, export and count do."""
    with Reader(path) as reader:
        reader.summaries(limit=1000)
        reader.stats()
        reader.search("word17")
        list(reader.all_ratings(everything=True))
        for trajectory in reader.trajectories():
            reader.record(trajectory)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_any_damage_is_a_sentence_and_what_is_whole_is_rescued(
    damage: Callable[[bytearray, random.Random], None],
    whole: Path,
    originals: dict[str, Trajectory],
    tmp_path: Path,
) -> None:
    for draw in range(6):
        seed = random.SystemRandom().randrange(1 << 32)
        print(damage.__name__, "seed", seed)
        folder = tmp_path / str(draw)
        folder.mkdir()
        path, rescued = folder / "hermes.db", folder / "rescued.db"
        data = bytearray(whole.read_bytes())
        damage(data, random.Random(seed))
        path.write_bytes(data)
        sentences = []
        for action in (read_everything, lambda path: Writer(path).close(), maintain.check):
            try:
                action(path)
            except HermesError as error:
                sentences.append(error.message)
        # A trajectory that one page names and another does not is missing, as one that was deleted is.
        for sentence in sentences:
            assert "\n" not in sentence and ("damaged" in sentence or "no trajectory" in sentence), sentence
        try:
            result = salvage(path, rescued)
        except StoreError:
            assert not rescued.exists()
            continue  # the first page, or the list of trajectories
        assert maintain.check(rescued).problems == ()
        with Reader(rescued) as reader:
            found = {trajectory.header.id: trajectory for trajectory in reader.trajectories()}
        assert len(found) == result.rescued
        for name in set(found) & set(originals):
            assert found[name].messages == originals[name].messages, "no text has changed"


def with_a_row_of_an_enormous_number(whole: Path, path: Path) -> None:
    """A page of the contexts, whose ids are hashes, in the place of one of the trajectories."""
    for seed in range(5_000):
        data = bytearray(whole.read_bytes())
        swap_pages(data, random.Random(seed))
        path.write_bytes(data)
        with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.Error, IndexError):
            last = connection.execute("SELECT seq FROM trajectories ORDER BY seq DESC LIMIT 1").fetchall()
            if last[0][0] > 10**9:
                return
    raise AssertionError("no draw moves a page of the contexts there")


def test_a_row_of_an_enormous_number_does_not_make_salvage_count_up_to_it(
    whole: Path, tmp_path: Path
) -> None:
    """Ten million queries took five minutes; now it takes a twentieth of the limit of processor time."""
    home = tmp_path / "home"
    home.mkdir()
    with_a_row_of_an_enormous_number(whole, home / "hermes.db")
    done = subprocess.run(
        ["sh", "-c", f"ulimit -t 60; exec {sys.executable} -m hermes store salvage rescued.db --json"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HERMES_HOME": str(home), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, f"1: something is lost, here a page of contexts. {done.stderr}"
    assert json.loads(done.stdout)["rescued"] >= TRAJECTORIES - 30


def test_a_whole_store_is_salvaged_whole(
    whole: Path, originals: dict[str, Trajectory], tmp_path: Path
) -> None:
    result = salvage(whole, tmp_path / "copy.db")
    assert (result.rescued, result.lost, result.rows["metrics"]) == (TRAJECTORIES, {}, 1)
    with Reader(whole) as before, Reader(tmp_path / "copy.db") as after:
        for trajectory in before.trajectories():
            assert after.record(after.get(trajectory.header.id)) == before.record(trajectory)
    with pytest.raises(UsageError, match="exists"):
        salvage(whole, tmp_path / "copy.db")


def test_one_changed_letter_is_found_by_its_hash_and_its_trajectory_is_not_rescued(
    whole: Path, tmp_path: Path
) -> None:
    path = tmp_path / "hermes.db"
    shutil.copy(whole, path)
    connection = sqlite3.connect(path)
    (number,) = connection.execute("SELECT message FROM steps WHERE idx = 0 LIMIT 1").fetchone()
    connection.execute("UPDATE messages SET body = replace(body, 'task', 'tusk') WHERE id = ?", (number,))
    connection.commit()
    connection.close()
    assert f"the text of row {number} of messages has changed" in maintain.check(path).problems
    result = salvage(path, tmp_path / "rescued.db")
    assert result.rescued == TRAJECTORIES - 1
    assert list(result.lost.values()) == ["a text of it has changed"]


def damaged_home(whole: Path, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    data = bytearray(whole.read_bytes())
    for page in range(2, len(data) // 4096, 7):
        data[page * 4096 : page * 4096 + 100] = bytes(100)
    (home / "hermes.db").write_bytes(data)
    return home


COMMANDS = [
    ("trajectories", "list"),
    ("trajectories", "stats"),
    ("trajectories", "search", "word17"),
    ("export", "--format", "sharegpt", "--output", "out.jsonl"),
    ("rate", "stats"),
    ("-q", "hello", "--model", "test/model", "--base-url", "http://127.0.0.1:1/v1"),
    ("store", "check"),
    ("store", "compact"),
    ("doctor",),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments[:2]))
def test_every_command_says_that_the_store_is_damaged_and_writes_nothing(
    arguments: tuple[str, ...], whole: Path, tmp_path: Path
) -> None:
    home = damaged_home(whole, tmp_path)
    before = (home / "hermes.db").read_bytes()
    environ = {"PATH": "/usr/bin:/bin", "HERMES_HOME": str(home), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "hermes", *arguments],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert "damaged" in output and "hermes store salvage" in " ".join(output.split()), output
    assert "Traceback" not in output
    assert (home / "hermes.db").read_bytes() == before


def test_an_empty_file_is_no_new_store(tmp_path: Path) -> None:
    path = tmp_path / "hermes.db"
    path.touch()
    for action in (Reader, Writer):
        with pytest.raises(StoreError, match="0 bytes"):
            action(path)
    path.unlink()
    Writer(path).close()
    assert [entry.name for entry in tmp_path.iterdir() if ".new" in entry.name] == []


def test_who_holds_a_locked_store_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hermes.store import sqlite

    path = tmp_path / "hermes.db"
    Writer(path).close()
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.2)
    holder = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN EXCLUSIVE')"
    holder += "; print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        try:
            with pytest.raises(StoreError, match=rf"locked; it is open in \S+ \({process.pid}\)"):
                writer = Writer(path)
                records.record(writer, [Message.user("hello")])
        finally:
            process.kill()
