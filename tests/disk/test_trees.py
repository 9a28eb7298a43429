"""Trees that nobody would make by hand, drawn at random, walked and removed."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from hermes.disk.trees import remove_tree, walk


def make(rng: random.Random, top: Path) -> None:
    """Files, links, pipes and folders; one branch is deeper than Python's stack and longer than a path."""
    top.mkdir()
    folders = [top]
    for number in range(rng.randint(20, 120)):
        path = rng.choice(folders) / f"{'.removed-' if rng.random() < 0.1 else 'n'}{number}"
        kind = rng.choice(("folder", "folder", "file", "link", "pipe"))
        if kind == "folder":
            path.mkdir()
            folders.append(path)
        elif kind == "file":
            path.write_text("x")
        elif kind == "link":
            path.symlink_to(rng.choice(("/", "..", "gone", "../kept")))
        else:
            os.mkfifo(path)
    name = "d" * rng.randint(1, 40)
    here = os.open(rng.choice(folders), os.O_RDONLY)
    for _ in range(rng.randint(1_100, 2_500)):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    for folder in sorted(rng.sample(folders, len(folders) // 3), reverse=True):  # inner folders first
        folder.chmod(rng.choice((0, stat.S_IRUSR, stat.S_IXUSR)))


def make_and_remove(seed: int) -> bool:
    make(random.Random(seed), Path("tree"))
    return remove_tree(Path("tree"))


@pytest.mark.parametrize("_", range(5))
def test_any_tree_is_removed_and_nothing_else(
    _: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept")
    monkeypatch.chdir(tmp_path)
    if os.geteuid() == 0:  # to root permissions mean nothing
        os.chown(tmp_path, 59_998, 59_998)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.setgid(59_998)
                os.setuid(59_998)
                status = 0 if make_and_remove(seed) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    else:
        assert make_and_remove(seed)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").read_text() == "kept"


def test_a_walk_sees_what_os_walk_sees(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/d", ".hidden/e"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "a")

    by_system = {Path(folder): {*names, *files} for folder, names, files in os.walk(tmp_path)}
    assert {folder: {*names, *files} for folder, names, files in walk(tmp_path)} == by_system
    (at_top,) = [files for folder, _, files in walk(tmp_path) if folder == tmp_path]
    assert at_top == ["link"]  # it is no folder


def test_what_cannot_be_removed_is_reported(tmp_path: Path) -> None:
    assert remove_tree(tmp_path / "gone")
    (tmp_path / "file").write_text("x")
    assert not remove_tree(tmp_path / "file")
