"""Installing, changing and checking skills; hostile sources leave nothing behind."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes.errors import ConfigError, UsageError
from hermes.skills import SkillError, SkillOrigin, list_skills
from hermes.skills.install import check, delete_skill, install, prepare, save_skill
from hermes.skills.source import MAX_FILE_BYTES, MAX_FILES
from tests.skills.conftest import WriteSkill, skill_text

TEXT = skill_text("porcelain", extra="version: 2.0\n")


def directory(root: Path, name: str = "porcelain", text: str = TEXT) -> Path:
    source = root / "source" / name
    (source / "references").mkdir(parents=True)
    (source / "SKILL.md").write_text(text)
    (source / "references" / "glaze.md").write_text("cobalt")
    return source


def zipped(path: Path, *entries: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return path


def tarred(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def problems(home: Path) -> tuple[str, ...]:
    return {finding.name: finding.problems for finding in check(home, {})}["porcelain"]


def nothing_installed(home: Path) -> bool:
    return not [path for path in home.rglob("*") if path.is_file()]


def test_a_directory_is_installed_whole_private_and_locked(home: Path, tmp_path: Path) -> None:
    source = directory(tmp_path)
    (source / ".git").mkdir()
    (source / ".git" / "config").write_text("x")
    (source / "references" / "run.sh").write_text("#!/bin/sh\n")
    (source / "references" / "run.sh").chmod(0o755)
    skill = install(home, prepare(str(source)))
    assert (skill.origin, skill.version, skill.directory) == (
        SkillOrigin.USER,
        "2.0",
        home / "skills" / "porcelain",
    )
    files = {
        path.relative_to(skill.directory).as_posix(): path
        for path in skill.directory.rglob("*")
        if path.is_file()
    }
    assert set(files) == {"SKILL.md", "references/glaze.md", "references/run.sh"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o600}
    assert problems(home) == ()


@pytest.mark.parametrize("prefix", ["", "porcelain-2.0/", "./"])
def test_archives_with_and_without_a_top_directory_are_the_same_skill(
    home: Path, tmp_path: Path, prefix: str
) -> None:
    files = {f"{prefix}SKILL.md": TEXT.encode(), f"{prefix}references/glaze.md": b"cobalt"}
    archives = (
        zipped(tmp_path / "a.zip", *files.items()),
        tarred(tmp_path / "a.tar.gz", *((member(name), data) for name, data in files.items())),
    )
    for archive in archives:
        assert prepare(str(archive)).files == {"SKILL.md": TEXT.encode(), "references/glaze.md": b"cobalt"}


def test_a_tar_made_of_the_current_directory_is_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        archive.add(directory(tmp_path), ".")
    assert set(prepare(str(tmp_path / "a.tgz")).files) == {"SKILL.md", "references/glaze.md"}


def test_a_bundled_skill_is_copied_into_its_category(home: Path) -> None:
    skill = install(home, prepare("official/mlops/vllm"))
    assert skill.directory == home / "skills" / "mlops" / "vllm"
    assert list_skills(home).find("vllm").origin is SkillOrigin.USER


def test_a_bundled_name_wins_over_a_directory_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    monkeypatch.chdir(tmp_path)
    assert prepare("vllm").source == "official/mlops/vllm"
    with pytest.raises(SkillError, match=r"holds no SKILL\.md"):
        prepare("./vllm")


def test_an_installed_skill_is_replaced_only_on_request(home: Path, tmp_path: Path) -> None:
    first, second = (
        directory(tmp_path / "one"),
        directory(tmp_path / "two", text=TEXT.replace("Do it.", "Do more.")),
    )
    install(home, prepare(str(first)))
    with pytest.raises(UsageError, match="already installed"):
        install(home, prepare(str(second)))
    assert "Do it." in list_skills(home).find("porcelain").body
    install(home, prepare(str(second)), replace=True)
    assert "Do more." in list_skills(home).find("porcelain").body
    assert not list((home / "skills" / ".quarantine").iterdir())


def _symlink(path: Path) -> Path:
    info = zipfile.ZipInfo("passwd")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return zipped(path / "s.zip", ("SKILL.md", TEXT.encode()), (info, b"/etc/passwd"))


def _directory_with_link(path: Path) -> Path:
    source = directory(path)
    (source / "passwd").symlink_to("/etc/passwd")
    return source


def _tar(path: Path, *extra: tuple[tarfile.TarInfo, bytes]) -> Path:
    return tarred(path / "s.tar.gz", (member("SKILL.md"), TEXT.encode()), *extra)


def _huge_extended_header(path: Path) -> Path:
    """A tar whose first header promises 100 MB of extended header: a few kilobytes when compressed."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 100_000_000
    target = path / "s.tar.gz"
    with gzip.open(target, "wb") as file:
        file.write(info.tobuf(tarfile.USTAR_FORMAT))
        file.write(b"\0" * 100_000_000)
    return target


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "zip climbing": (
        lambda p: zipped(p / "s.zip", ("SKILL.md", TEXT.encode()), ("../../up", b"x")),
        "not allowed",
    ),
    "zip absolute": (
        lambda p: zipped(p / "s.zip", ("SKILL.md", TEXT.encode()), ("/tmp/up", b"x")),
        "not allowed",
    ),
    "zip backslash": (
        lambda p: zipped(p / "s.zip", ("SKILL.md", TEXT.encode()), ("..\\up", b"x")),
        "not allowed",
    ),
    "zip control": (
        lambda p: zipped(p / "s.zip", ("SKILL.md", TEXT.encode()), ("a\x1b[31m", b"x")),
        "not allowed",
    ),
    "zip symlink": (_symlink, "link or special file"),
    "zip duplicate": (
        lambda p: zipped(p / "s.zip", ("SKILL.md", TEXT.encode()), ("a//b", b"x"), ("a/b", b"y")),
        "two files named 'a/b'",
    ),
    "zip large file": (
        lambda p: zipped(p / "s.zip", ("SKILL.md", TEXT.encode()), ("big", b"\0" * (MAX_FILE_BYTES + 1))),
        "bytes; at most",
    ),
    "zip many files": (
        lambda p: zipped(
            p / "s.zip", ("SKILL.md", TEXT.encode()), *((f"f{n}", b"") for n in range(MAX_FILES))
        ),
        "more than 200 files",
    ),
    "zip total": (
        lambda p: zipped(
            p / "s.zip", ("SKILL.md", TEXT.encode()), *((f"f{n}", b"\0" * MAX_FILE_BYTES) for n in range(11))
        ),
        "or 20000000 bytes",
    ),
    "tar climbing": (lambda p: _tar(p, (member("../up"), b"x")), "not allowed"),
    "tar absolute": (lambda p: _tar(p, (member("/tmp/up"), b"x")), "not allowed"),
    "tar symlink": (
        lambda p: _tar(p, (member("l", tarfile.SYMTYPE, "/etc/passwd"), b"")),
        "link or special file",
    ),
    "tar hard link": (
        lambda p: _tar(p, (member("l", tarfile.LNKTYPE, "/etc/passwd"), b"")),
        "link or special file",
    ),
    "tar device": (lambda p: _tar(p, (member("d", tarfile.CHRTYPE), b"")), "link or special file"),
    "tar pipe": (lambda p: _tar(p, (member("p", tarfile.FIFOTYPE), b"")), "link or special file"),
    "tar bomb": (_huge_extended_header, "unpacks to more than"),
    "directory link": (_directory_with_link, "link or special file"),
    "no skill file": (lambda p: zipped(p / "s.zip", ("readme.md", b"x")), "holds no SKILL.md"),
    "broken skill": (lambda p: zipped(p / "s.zip", ("SKILL.md", b"no front matter")), "does not start with"),
    "no text": (lambda p: zipped(p / "s.zip", ("SKILL.md", b"\xff")), "not UTF-8"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_source_is_refused_and_leaves_nothing(home: Path, tmp_path: Path, case: str) -> None:
    make, reason = HOSTILE[case]
    source = make(tmp_path)
    with pytest.raises(SkillError) as caught:
        install(home, prepare(str(source)))
    assert reason in caught.value.message
    assert nothing_installed(home)


@pytest.mark.parametrize("name", ["s.zip", "s.tar.gz"])
@pytest.mark.parametrize("data", [b"", b"not an archive", b"PK\x03\x04 cut", b"\x1f\x8b\x08 cut"])
def test_a_damaged_archive_is_a_clear_error(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SkillError, match="cannot be read"):
        prepare(str(tmp_path / name))


def test_something_that_is_no_source_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "skill.rar").write_bytes(b"x")
    with pytest.raises(UsageError, match="is not a skill"):
        prepare(str(tmp_path / "skill.rar"))
    with pytest.raises(UsageError, match="neither a bundled skill nor"):
        prepare(str(tmp_path / "missing"))


def test_check_names_changed_added_missing_and_gone_files(home: Path, tmp_path: Path) -> None:
    skill = install(home, prepare(str(directory(tmp_path))))
    (skill.directory / "references" / "glaze.md").write_text("lead")
    (skill.directory / "extra.md").write_text("x")
    assert problems(home) == ("references/glaze.md was changed", "extra.md was added")
    (skill.directory / "references" / "glaze.md").unlink()
    assert "references/glaze.md is missing" in problems(home)
    skill.directory.rename(tmp_path / "elsewhere")
    assert problems(home) == ("was installed, but its directory is gone",)


def test_check_names_what_this_machine_lacks(home: Path, write_skill: WriteSkill) -> None:
    extra = "prerequisites:\n  env_vars: [KILN_TOKEN, HOME]\n  commands: [sh, no-such-program]\n"
    write_skill("kiln", extra=extra)
    finding = next(finding for finding in check(home, {"HOME": "/x"}) if finding.name == "kiln")
    assert finding.missing == ("command no-such-program", "variable KILN_TOKEN")
    assert finding.problems == ()


def test_a_skill_is_created_edited_and_deleted(home: Path) -> None:
    save_skill(home, "mine", skill_text("mine"))
    save_skill(home, "mine", skill_text("mine", body="Better."))
    assert list_skills(home).find("mine").body == "Better.\n"
    delete_skill(home, "mine")
    assert "mine" not in [skill.name for skill in list_skills(home).skills]
    with pytest.raises(UsageError, match="no user skill 'arxiv'"):
        delete_skill(home, "arxiv")


def test_an_edited_skill_is_no_longer_held_to_what_was_installed(home: Path, tmp_path: Path) -> None:
    install(home, prepare(str(directory(tmp_path))))
    save_skill(home, "porcelain", TEXT.replace("Do it.", "Do more."))
    assert problems(home) == ()


@pytest.mark.parametrize("name", ["other", "../mine", "mine/../../x"])
def test_a_skill_is_saved_only_under_its_own_name(home: Path, name: str) -> None:
    with pytest.raises(SkillError):
        save_skill(home, name, skill_text("mine"))
    assert nothing_installed(home)


def test_a_damaged_lock_file_is_an_error_that_names_it(home: Path, write_skill: WriteSkill) -> None:
    write_skill("fine")
    (home / "skills" / ".lock.json").write_text("{")
    with pytest.raises(ConfigError, match=r"\.lock\.json is not a skill lock file"):
        check(home, {})


def test_a_home_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot create the directory"):
        install(tmp_path / "file" / "home", prepare("arxiv"))


def test_a_strangers_skill_does_not_stand_in_for_a_bundled_one(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "arxiv"
    folder.mkdir()
    (folder / "SKILL.md").write_text(skill_text("arxiv"))
    with pytest.raises(UsageError, match="comes with Hermes"):
        install(home, prepare(str(folder)))
    assert list_skills(home).find("arxiv").origin is SkillOrigin.BUNDLED
    assert install(home, prepare(str(folder)), replace=True).origin is SkillOrigin.USER
    install(home, prepare("official/research/arxiv"), replace=True)
