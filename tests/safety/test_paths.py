"""No spelling of a path, and no link however it is swapped, leads out of a directory."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import pytest

from hermes.safety.paths import locate_inside, open_inside, resolve_inside

CANARY = b"the canary"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with honest and hostile contents, and a canary next to it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_bytes(CANARY)
    (tmp_path / "canary").write_bytes(CANARY)
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "file").write_bytes(b"inside")
    (root / "a" / "file").write_bytes(b"inside a")
    (root / "dir_out").symlink_to(outside)
    (root / "dir_out_relative").symlink_to("../outside")
    (root / "file_out").symlink_to(outside / "canary")
    (root / "file_out_relative").symlink_to("../outside/canary")
    (root / "up").symlink_to("..")
    (root / "a" / "up_up").symlink_to("../..")
    (root / "slash").symlink_to("/")
    (root / "proc_root").symlink_to("/proc/self/root")
    (root / "proc_cwd").symlink_to("/proc/self/cwd")
    (root / "chain1").symlink_to("chain2")
    (root / "chain2").symlink_to("a/up_up")
    (root / "loop").symlink_to("loop")
    (root / "in").symlink_to("a/b/../file")
    (root / "in_dir").symlink_to("a")
    (root / "in_absolute").symlink_to(root / "a" / "file")
    (root / "in_alias").symlink_to("/workspace/a/file")
    return root


def _variants(root: Path) -> list[str]:
    """Ways to write a path to one of the canaries, or to something else outside."""
    outside = str(root.parent / "outside" / "canary")
    ups = ["../" * depth for depth in range(1, 25)]
    stems = ["canary", "outside/canary", "../outside/canary", "root/../canary", "outside/../canary"]
    found = [up + stem for up in ups for stem in stems]
    found += [f"a/b/../../{up}canary" for up in ups] + [up + outside[1:] for up in ups]
    found += [f"./{up}./canary" for up in ups]
    links = [
        "dir_out",
        "dir_out_relative",
        "up",
        "slash",
        "proc_root",
        "proc_cwd",
        "chain1",
        "a/up_up",
        "in_dir/up_up",
    ]
    for link, tail in itertools.product(
        links, ["canary", "outside/canary", "./canary", "../canary", outside, "x/../canary"]
    ):
        found.append(f"{link}/{tail}")
    found += [
        "file_out",
        "file_out_relative",
        "./file_out",
        "a/../file_out",
        "in_dir/../file_out",
        "loop",
        "loop/x",
    ]
    found += [
        outside,
        "/" + outside,
        "//" + outside,
        outside + "/",
        "/etc/passwd",
        "/",
        "/proc/self/root" + outside,
    ]
    found += [
        "/proc/self/cwd/canary",
        "/dev/fd/0",
        str(root) + "/../canary",
        str(root) + "x/canary",
        str(root.parent),
    ]
    found += ["..", "../", "../.", "a/../..", "a/b/../../..", "slash", "up", "dir_out", "dir_out/"]
    found += ["", "\0", "file\0", "../canary\0", "x" * 5000, "a/" * 3000 + "file", "\ud800", "..\0/canary"]
    found += [
        "．．/canary",
        "%2e%2e/canary",
        "..%2fcanary",
        "..\\canary",
        "~/canary",
        "$HOME/x",
        "..;/canary",
    ]
    return found


def test_more_than_two_hundred_ways_out_stay_inside(root: Path) -> None:
    variants = _variants(root)
    assert len(variants) >= 200
    for path in variants:
        for flags in (os.O_RDONLY, os.O_RDONLY | os.O_DIRECTORY):
            try:
                descriptor = open_inside(root, path, flags)
            except OSError:
                continue
            try:
                real = Path(f"/proc/self/fd/{descriptor}").resolve()
            finally:
                os.close(descriptor)
            assert real.is_relative_to(root), path
        try:
            assert resolve_inside(root, path).is_relative_to(root), path
        except OSError:
            continue


def test_the_variants_would_reach_the_canary_without_the_guard(root: Path) -> None:
    reached = 0
    for path in _variants(root):
        try:
            reached += (root / path).read_bytes() == CANARY
        except (OSError, ValueError):
            continue
    assert reached > 50


def test_writing_through_a_link_creates_nothing_outside(root: Path) -> None:
    before = sorted(root.parent.rglob("*"))
    (root / "dangling").symlink_to("../outside/new")
    for path in ("dangling", "dir_out/new", "up/new", "file_out/new", "slash/tmp/hermes-new", "../new"):
        with pytest.raises(OSError):
            open_inside(root, path, os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError), locate_inside(root, f"{path}/deeper/file", make_parents=True):
            pass
    (root / "dangling").unlink()
    assert sorted(root.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "path, content",
    [
        ("file", b"inside"),
        ("./a/../file", b"inside"),
        ("in_dir/file", b"inside a"),
        ("in", b"inside a"),
        ("in_absolute", b"inside a"),
        ("a/b/../../a//file", b"inside a"),
    ],
)
def test_paths_and_links_that_stay_inside_work(root: Path, path: str, content: bytes) -> None:
    with os.fdopen(open_inside(root, path, os.O_RDONLY), "rb") as stream:
        assert stream.read() == content
    assert resolve_inside(root, path).read_bytes() == content


def test_absolute_paths_count_from_the_alias(root: Path) -> None:
    for path in ("/workspace/a/file", "in_alias"):
        with os.fdopen(open_inside(root, path, os.O_RDONLY, alias="/workspace"), "rb") as stream:
            assert stream.read() == b"inside a"
    with pytest.raises(PermissionError):
        open_inside(root, str(root / "file"), os.O_RDONLY, alias="/workspace")
    with pytest.raises(PermissionError):
        open_inside(root, "/workspacex/file", os.O_RDONLY, alias="/workspace")


def test_missing_files_and_wrong_kinds_are_told_apart(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_inside(root, "a/missing", os.O_RDONLY)
    with pytest.raises(NotADirectoryError):
        open_inside(root, "file/below", os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        open_inside(root, "a", os.O_WRONLY)
    with pytest.raises(OSError, match="symbolic links"):
        open_inside(root, "loop", os.O_RDONLY)


def test_a_directory_swapped_for_a_link_while_walking_leads_nowhere(root: Path) -> None:
    """One thread swaps; the other opens. Every file that opens must be the one inside."""
    (root / "real").mkdir()
    (root / "real" / "canary").write_bytes(b"inside")
    (root / "link").symlink_to("../outside")
    (root / "real").rename(root / "spot")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (root / "spot").rename(root / "real")
            (root / "link").rename(root / "spot")
            (root / "spot").rename(root / "link")
            (root / "real").rename(root / "spot")

    swapper = threading.Thread(target=swap)
    swapper.start()
    outcomes: set[str] = set()
    try:
        for _ in range(3000):
            try:
                with os.fdopen(open_inside(root, "spot/canary", os.O_RDONLY), "rb") as stream:
                    assert stream.read() == b"inside"
                    outcomes.add("inside")
            except OSError:
                outcomes.add("refused")
    finally:
        stop.set()
        swapper.join()
    assert outcomes == {"inside", "refused"}


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in ("file", "in", "up/canary", "a/missing", "loop", "in_absolute"):
        try:
            os.close(open_inside(root, path, os.O_RDONLY))
        except OSError:
            continue
    assert len(list(Path("/proc/self/fd").iterdir())) == before
