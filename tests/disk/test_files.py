"""Private files: modes, whole replacement, and errors that name the path."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.config import paths
from hermes.disk.files import atomic_write, ensure_dir, read_text
from hermes.errors import ConfigError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_home_is_hermes_home_or_a_directory_below_the_users_own() -> None:
    assert paths.home({"HERMES_HOME": "/srv/h"}) == Path("/srv/h")
    assert paths.home({"HOME": "/home/ada"}) == Path("/home/ada/.hermes")
    assert paths.home({"HERMES_HOME": "", "HOME": "/home/ada"}) == Path("/home/ada/.hermes")
    assert paths.home({"HERMES_HOME": "relative"}) == Path.cwd() / "relative"
    with pytest.raises(ConfigError, match="where the Hermes home is"):
        paths.home({"HERMES_HOME": "~no-such-user-here/x"})


def test_directories_are_private_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        ensure_dir(tmp_path / "a" / "b")
        atomic_write(tmp_path / "c" / "file", "x")
    finally:
        os.umask(old)
    assert [mode(tmp_path / name) for name in ("a", "a/b", "c", "c/file")] == [0o700, 0o700, 0o700, 0o600]


def test_replacing_a_file_makes_it_private_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    target.chmod(0o644)
    atomic_write(target, "new")
    assert target.read_text() == "new"
    assert mode(target) == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_a_symlink_stays_a_symlink_and_its_target_is_replaced(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "config.yaml"
    real.parent.mkdir()
    real.write_text("old")
    link = tmp_path / "config.yaml"
    link.symlink_to(real)
    atomic_write(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_write_that_runs_out_of_room_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from hermes.disk.files import atomic_write\n"
        "from hermes.errors import ConfigError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "try:\n"
        "    atomic_write(Path(sys.argv[1]), 'x' * 1000)\n"
        "except ConfigError as error:\n"
        "    sys.exit(error.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(target)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip() == f"cannot write {target}: File too large"
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_where_a_directory_should_be_is_named(tmp_path: Path) -> None:
    blocker = tmp_path / "home"
    blocker.write_text("")
    with pytest.raises(ConfigError, match="cannot create the directory") as made:
        ensure_dir(blocker / "inner")
    assert "a file is in the way" in made.value.hint
    with pytest.raises(ConfigError, match="Not a directory"):
        read_text(blocker / "config.yaml")


def test_a_missing_file_is_none_and_bytes_that_are_no_text_are_named_by_line(tmp_path: Path) -> None:
    assert read_text(tmp_path / "absent") is None
    (tmp_path / "bad").write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(ConfigError, match=r"bad:3: not UTF-8"):
        read_text(tmp_path / "bad")


def test_text_that_has_no_encoding_is_refused_before_anything_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(ConfigError, match="not valid Unicode"):
        atomic_write(target, "\ud800")
    assert target.read_text() == "old"
