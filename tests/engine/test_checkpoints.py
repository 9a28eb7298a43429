"""Named checkpoints on disk: whole or absent, found again after any end of the process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermes.engine.checkpoints.store import CheckpointPath, CheckpointStore, TrainingRun
from hermes.engine.types import EngineUserError
from hermes.errors import HostError
from tests.engine.checkpoint_parts import PATH, RUN, opened, write


def content(store: CheckpointStore, path: CheckpointPath = PATH) -> str:
    return (store.folder(path) / "adapter_model.safetensors").read_text()


def test_everything_is_found_again_by_the_next_process(tmp_path: Path) -> None:
    first = opened(tmp_path)
    made = write(first, PATH, user_metadata={"step": "1"}, ttl_s=7200)
    first.set_public(PATH, True)
    first.close()
    second = CheckpointStore(tmp_path)
    found = second.find(PATH)
    assert second.run(RUN.id) == RUN
    assert found.public
    assert (found.user_metadata, found.expires_s, found.size_bytes) == ({"step": "1"}, made.expires_s, 7)
    assert found.files == ("adapter_model.safetensors",)


def test_no_folder_has_a_colon_and_those_that_had_one_are_read_and_added_to(tmp_path: Path) -> None:
    """A ':' in a file's name is refused by Windows, and splits PATH and the arguments of rsync and scp."""
    named = PATH._replace(name="after:warm-up")
    store = opened(tmp_path)
    write(store, PATH, "first")
    write(store, named, "second")
    store.close()
    assert list(tmp_path.rglob("*:*")) == []
    (tmp_path / "s~train~0").rename(tmp_path / RUN.id)  # as versions until now wrote them
    weights = tmp_path / RUN.id / "weights"
    (weights / "after~warm-up").rename(weights / named.name)
    former = CheckpointStore(tmp_path)
    assert (content(former), content(former, named)) == ("first", "second")
    write(former, PATH._replace(name="step-2"))
    write(former, named, "third", overwrite=True)
    former.close()
    assert sorted(path.name for path in weights.iterdir()) == ["after:warm-up", "step-1", "step-2"]
    again = CheckpointStore(tmp_path)
    assert content(again, named) == "third" and len(again.checkpoints()) == 3
    again.drop_run(RUN.id)
    assert not (tmp_path / RUN.id).exists()


@pytest.mark.parametrize(
    "text",
    [
        "run/weights/a",
        "tinker://run/weights",
        "tinker://run/weights/a/b",
        "tinker://run/archives/a",
    ],
)
def test_what_is_not_a_path_of_three_parts_is_refused(text: str) -> None:
    with pytest.raises(EngineUserError, match="not a checkpoint"):
        CheckpointPath.parse(text)


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a b", "a?b", "ä", "x" * 201, "-rf"])
def test_a_name_that_could_leave_its_place_or_an_address_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(EngineUserError, match="cannot be the name"):
        opened(tmp_path).draft(PATH._replace(name=name))


def test_a_name_is_taken_once_and_replaced_only_on_request(tmp_path: Path) -> None:
    store = opened(tmp_path)
    write(store, PATH, "old", user_metadata={"kept": "no"})
    with pytest.raises(EngineUserError, match="exists already"):
        store.draft(PATH)
    write(store, PATH, "new", overwrite=True)
    assert content(store) == "new"
    assert store.find(PATH).user_metadata is None
    assert [path.name for path in store.folder(PATH).parent.iterdir()] == ["step-1"]


def test_of_two_drafts_of_one_name_the_second_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    drafts = [store.draft(PATH), store.draft(PATH)]
    for number, draft in enumerate(drafts):
        draft.mkdir()
        (draft / "adapter_model.safetensors").write_text(str(number))
    store.commit(PATH, drafts[0])
    with pytest.raises(EngineUserError, match="exists already"):
        store.commit(PATH, drafts[1])
    assert content(store) == "0"


def test_a_draft_that_was_never_committed_is_gone_after_a_restart(tmp_path: Path) -> None:
    store = opened(tmp_path)
    draft = store.draft(PATH)
    draft.mkdir()
    (draft / "adapter_model.safetensors").write_text("half")
    store.close()
    assert CheckpointStore(tmp_path).checkpoints() == []
    assert not draft.exists()


def test_a_replacement_that_was_cut_between_its_two_renames_leaves_the_old_one(tmp_path: Path) -> None:
    store = opened(tmp_path)
    write(store, PATH, "old")
    place = store.folder(PATH)
    place.rename(place.with_name(".step-1.old"))  # what commit does first
    store.close()
    again = CheckpointStore(tmp_path)
    assert content(again) == "old"
    assert again.find(PATH)


KILLED = """
import sys, itertools
from pathlib import Path
from tests.engine.checkpoint_parts import PATH, opened, write
store = opened(Path(sys.argv[1]))
for number in itertools.count(1):
    write(store, PATH, f"{number:09}" * 1000, overwrite=True)
    print(number, flush=True)
"""


def test_kill_9_in_the_middle_of_replacing_never_loses_or_mixes_a_checkpoint(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    for wanted in (3, 20, 45):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
        )
        assert child.stdout is not None
        acknowledged = 0
        for line in child.stdout:
            acknowledged = int(line)
            if acknowledged == wanted:
                child.send_signal(signal.SIGKILL)
        child.wait()
        store = CheckpointStore(tmp_path)
        text = content(store)
        store.close()
        number = int(text[:9])
        assert text == f"{number:09}" * 1000
        assert number >= acknowledged


def test_two_processes_cannot_own_one_root(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(HostError, match="another engine"):
        CheckpointStore(tmp_path)
    first.close()
    CheckpointStore(tmp_path).close()


def test_an_expired_checkpoint_is_not_found_and_leaves_the_disk(tmp_path: Path) -> None:
    store = opened(tmp_path)
    write(store, PATH, ttl_s=3600)
    assert store.expired(time.time() + 3599) == []
    assert store.expired(time.time() + 3601) == [store.find(PATH)]
    store.set_ttl(PATH, 0)
    with pytest.raises(EngineUserError, match="no checkpoint"):
        store.find(PATH)
    assert store.checkpoints() == []
    folder = store.folder(PATH)
    assert folder.exists()
    store.close()
    CheckpointStore(tmp_path)
    assert not folder.exists()


def test_a_time_to_live_can_be_set_and_lifted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    write(store, PATH)
    store.set_ttl(PATH, 4000)
    assert store.find(PATH).expires_s == pytest.approx(time.time() + 4000, abs=60)
    store.set_ttl(PATH, None)
    assert store.expired(time.time() + 10_000) == []
    assert store.find(PATH).expires_s is None


def test_a_copy_shares_its_files_and_outlives_the_original(tmp_path: Path) -> None:
    store = opened(tmp_path)
    write(store, PATH, "shared")
    copy = store.copy(PATH, TrainingRun("t:train:0", "t", "tiny", RUN.lora, 2000.0), None)
    name = "adapter_model.safetensors"
    assert (store.folder(PATH) / name).samefile(store.folder(copy.path) / name)
    store.delete(store.find(PATH))
    assert content(store, copy.path) == "shared"
    assert [run.id for run in store.runs()] == ["t:train:0", RUN.id]


COPY = TrainingRun("t:train:0", "t", "tiny", RUN.lora, 2000.0)


def test_where_files_cannot_be_shared_a_copy_is_a_copy(tmp_path: Path, small_disk: Path) -> None:
    store = opened(tmp_path / "root")
    write(store, PATH, "copied")
    (small_disk / "elsewhere").mkdir()
    (store.root / COPY.id).symlink_to(small_disk / "elsewhere")  # another file system: no hard links to it
    copy = store.copy(PATH, COPY, None)
    name = "adapter_model.safetensors"
    assert not (store.folder(PATH) / name).samefile(store.folder(copy.path) / name)
    assert content(store, copy.path) == "copied"


@pytest.mark.parametrize("room", [0, 1])
def test_a_copy_that_fails_leaves_nothing(small_disk: Path, room: int) -> None:
    """The disk is full from the beginning, or once the run has its file."""
    store = opened(small_disk / "root")
    write(store, PATH)
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        with pytest.raises(OSError, match="No space left"):
            while True:
                filler.write(bytes(4096))
        filler.truncate(filler.tell() - room * 4096)
        with pytest.raises(OSError, match="No space left"):
            store.copy(PATH, COPY, None)
    assert store.run(COPY.id) is None
    assert sorted(one.name for one in store.root.iterdir()) == [".lock", "s~train~0"]
    store.close()
    again = CheckpointStore(store.root)
    assert [one.path for one in again.checkpoints()] == [PATH]
    assert [run.id for run in again.runs()] == [RUN.id]


def test_a_replacement_that_cannot_take_its_place_leaves_the_old_one(
    tmp_path: Path, small_disk: Path
) -> None:
    store = opened(tmp_path / "root")
    old = write(store, PATH, "old")
    draft = small_disk / "draft"  # another file system: it cannot be renamed to its place
    draft.mkdir()
    (draft / "adapter_model.safetensors").write_text("new")
    with pytest.raises(OSError, match="cross-device"):
        store.commit(PATH, draft, overwrite=True)
    assert (content(store), store.find(PATH)) == ("old", old)
    store.close()
    assert content(CheckpointStore(store.root)) == "old"


def test_only_what_was_meant_is_deleted(tmp_path: Path) -> None:
    """Between the look at a checkpoint and its end, others may replace it, keep it longer or delete it."""
    store = opened(tmp_path)
    first = write(store, PATH, "old", ttl_s=3600)
    late_s = time.time() + 4000
    store.set_ttl(PATH, None)
    store.delete(first, expired_by_s=late_s)
    assert content(store) == "old"
    store.set_ttl(PATH, 3600)
    write(store, PATH, "new", overwrite=True)
    store.delete(first)
    assert content(store) == "new"
    for _ in range(2):
        store.delete(store.find(PATH) if store.checkpoints() else first)
    assert store.checkpoints() == []


def test_a_run_can_be_dropped_with_all_that_was_saved_of_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    write(store, PATH)
    store.drop_run(RUN.id)
    assert (store.runs(), store.checkpoints()) == ([], [])
    store.close()
    assert CheckpointStore(tmp_path).runs() == []


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = tmp_path / "other"
    broken.mkdir()
    (broken / "run.json").write_text(json.dumps({"id": 5}))
    store = opened(tmp_path)
    assert [run.id for run in store.runs()] == [RUN.id]
    assert "was ignored" in caplog.text
