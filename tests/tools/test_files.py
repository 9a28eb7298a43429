"""Reading, writing and patching files in real sandboxes, with hostile paths."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hermes.safety.approval import ApprovalPolicy, PolicyApprover
from hermes.tools.base import Workbench
from tests.tools.bench import call, error, open_bench, text


async def test_lines_are_numbered(bench: Workbench) -> None:
    await text(bench, "write_file", path="a/b/c.txt", content="one\ntwo\r\n\n  four")
    assert (
        await text(bench, "read_file", path="a/b/c.txt")
        == "     1\tone\n     2\ttwo\n     3\t\n     4\t  four"
    )


async def test_an_absolute_path_inside_the_workspace_is_the_same_file(bench: Workbench) -> None:
    await text(bench, "write_file", path=f"{bench.sandbox.workspace}/x", content="x")
    assert await text(bench, "read_file", path="./x") == "     1\tx"


async def test_a_long_file_is_shown_in_parts(bench: Workbench) -> None:
    await bench.sandbox.write_file("long", b"".join(b"%d\n" % number for number in range(1, 5001)))
    first = (await text(bench, "read_file", path="long")).split("\n")
    assert first[1999:] == [
        "  2000\t2000",
        "… lines 2001 to 5000 not shown; continue with offset 2001",
    ]
    part = (await text(bench, "read_file", path="long", offset=4999, limit=2)).split("\n")
    assert part == ["  4999\t4999", "  5000\t5000"]
    kind, message = await error(bench, "read_file", path="long", offset=5001)
    assert (kind, message) == ("bad_arguments", "offset 5001 is beyond the last line, 5000")


async def test_wide_lines_are_clipped_and_never_exceed_the_result_budget(bench: Workbench) -> None:
    await bench.sandbox.write_file("wide", b"\n".join(b"x" * 3_000 for _ in range(2_000)))
    message, result = await call(bench, "read_file", path="wide")
    assert result.saved_path is None
    assert "x … 1000 more characters in this line\n     2\t" in message.content
    assert message.content.endswith("continue with offset 41")


async def test_an_empty_file_is_said_to_be_empty(bench: Workbench) -> None:
    await text(bench, "write_file", path="empty", content="")
    assert await text(bench, "read_file", path="empty") == "(the file is empty)"


async def test_only_the_beginning_of_a_huge_file_is_read(local: Workbench) -> None:
    with (Path(local.sandbox.workspace) / "huge").open("wb") as file:
        file.write(b"line\n" * 10)
        file.truncate(3_000_000_000)
    kind, message = await error(local, "read_file", path="huge")
    assert (kind, "binary" in message) == ("failed", True)
    await local.sandbox.write_file("big", b"line\n" * 2_100_000)
    shown = await text(local, "read_file", path="big", offset=1_999_999)
    assert shown.endswith("… only the first 10000000 bytes of the file can be read this way")


async def test_what_is_not_text_is_refused_by_its_kind(local: Workbench) -> None:
    for data, said in (
        (b"\x7fELF\x00\x01", "binary file of 6 bytes"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "PNG image, not text; vision_analyze"),
        (b"\xff\xd8\xff\xe0\x00\x10", "JPEG image"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "WebP image"),
    ):
        await local.sandbox.write_file("file", data)
        kind, message = await error(local, "read_file", path="file")
        assert kind == "failed"
        assert said in message


async def test_damaged_utf8_is_shown_with_marks_but_not_patched(local: Workbench) -> None:
    await local.sandbox.write_file("latin", "caf\xe9 one\n".encode("latin-1"))
    assert await text(local, "read_file", path="latin") == "     1\tcaf� one"
    kind, message = await error(local, "patch", path="latin", old="one", new="two")
    assert (kind, "not UTF-8 text (byte 3)" in message) == ("failed", True)
    assert await local.sandbox.read_file("latin") == b"caf\xe9 one\n"


async def test_a_missing_file_is_said_to_be_missing(bench: Workbench) -> None:
    for tool, more in (("read_file", {}), ("patch", {"old": "a", "new": "b"})):
        assert await error(bench, tool, path="no/such", **more) == ("failed", "'no/such' does not exist")


async def test_a_directory_is_not_a_file(bench: Workbench) -> None:
    await text(bench, "write_file", path="folder/file", content="x")
    for tool, more in (
        ("read_file", {}),
        ("write_file", {"content": "x"}),
        ("patch", {"old": "a", "new": "b"}),
    ):
        kind, message = await error(bench, tool, path="folder", **more)
        assert (kind, message) == ("failed", "'folder' is a directory, not a file")
    kind, message = await error(bench, "write_file", path="folder/file/deeper", content="x")
    assert (kind, "file, not a directory" in message) == ("failed", True)


async def test_an_unusable_path_is_bad_arguments(bench: Workbench) -> None:
    for path in ("a\0b", "~/notes", "~root/x", ""):
        for tool, more in (("read_file", {}), ("write_file", {"content": "x"})):
            kind, _ = await error(bench, tool, path=path, **more)
            assert kind == "bad_arguments"


async def test_a_path_of_a_million_characters_is_an_error_and_nothing_else(bench: Workbench) -> None:
    kind, _ = await error(bench, "read_file", path="a/" * 500_000)
    assert kind == "failed"


async def test_a_fifo_does_not_hang_the_reader(bench: Workbench) -> None:
    await text(bench, "terminal", command="mkfifo pipe")
    kind, _ = await error(bench, "read_file", path="pipe")
    assert kind == "failed"


async def test_links_that_go_round_are_an_error(bench: Workbench) -> None:
    await text(bench, "terminal", command="ln -s b a; ln -s a b")
    kind, _ = await error(bench, "read_file", path="a")
    assert kind in ("failed", "bad_arguments")


def _outside_paths(tmp_path: Path) -> list[str]:
    """Ways to name tmp_path/secret from tmp_path/workspace, links included."""
    workspace = tmp_path / "workspace"
    (workspace / "link").symlink_to(tmp_path / "secret")
    (workspace / "relative").symlink_to("../secret")
    (workspace / "folder").symlink_to(tmp_path)
    (workspace / "chain").symlink_to("link")
    (workspace / "up").mkdir()
    (workspace / "up" / "out").symlink_to("../../secret")
    return [
        "../secret",
        "up/../../secret",
        f"{tmp_path}/secret",
        f"/{tmp_path}/secret",
        "link",
        "relative",
        "chain",
        "folder/secret",
        "up/out",
        f"{workspace}/../secret",
        f"/proc/self/root{tmp_path}/secret",
    ]


@pytest.fixture
def fenced(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir(exist_ok=True)
    (tmp_path / "secret").write_text("canary")
    return tmp_path


async def test_nothing_outside_the_workspace_is_touched_locally_without_approval(fenced: Path) -> None:
    asked: list[tuple[str, str]] = []

    async def ask(kind: str, action: str) -> str:
        asked.append((kind, action))
        return "no"

    paths = _outside_paths(fenced)
    approver = PolicyApprover(ApprovalPolicy(allow=(), deny=(), interactive=True, isolated=False), ask)
    async with open_bench("local", fenced / "workspace", approver) as bench:
        for path in paths:
            for tool, more in (
                ("read_file", {}),
                ("write_file", {"content": "x"}),
                ("patch", {"old": "canary", "new": "x"}),
                ("search_files", {"pattern": "canary"}),
            ):
                kind, message = await error(bench, tool, path=path, **more)
                assert kind == "refused", (path, tool, message)
    assert (fenced / "secret").read_text() == "canary"
    assert len(asked) == 4 * len(paths)
    assert {kind for kind, _ in asked} == {"path"}
    assert {action.split(" ", 1)[0] for _, action in asked} == {"read", "write", "change", "search"}
    assert all(action.partition("\n")[0].endswith(str(fenced / "secret")) for _, action in asked)


async def test_an_approved_path_outside_the_workspace_is_used(fenced: Path) -> None:
    async def ask(kind: str, action: str) -> str:
        return "once"

    approver = PolicyApprover(ApprovalPolicy(allow=(), deny=(), interactive=True, isolated=False), ask)
    async with open_bench("local", fenced / "workspace", approver) as bench:
        assert await text(bench, "read_file", path="../secret") == "     1\tcanary"
        await text(bench, "write_file", path="../secret", content="changed")
        assert "secret:1:changed" in await text(bench, "search_files", pattern="changed", path="../secret")
    assert (fenced / "secret").read_text() == "changed"


async def test_nothing_outside_the_workspace_is_reachable_from_an_isolated_sandbox(
    fenced: Path, isolated: Workbench
) -> None:
    paths = _outside_paths(fenced)
    for path in paths:
        assert (await error(isolated, "read_file", path=path))[0] == "failed"
        message, result = await call(isolated, "search_files", pattern="canary", path=path)
        assert not result.ok or message.content == "no matches"
    for path in paths:  # one that succeeds has written to the sandbox's own /tmp
        await call(isolated, "write_file", path=path, content="x")
    assert (fenced / "secret").read_text() == "canary"


async def test_a_patch_replaces_exactly_one_occurrence(bench: Workbench) -> None:
    await text(bench, "write_file", path="f.py", content="a = 1\nb = 1\n")
    assert (
        await text(bench, "patch", path="f.py", old="b = 1", new="b = 2")
        == "changed f.py at 1 place (line 2)"
    )
    assert await bench.sandbox.read_file("f.py") == b"a = 1\nb = 2\n"
    kind, message = await error(bench, "patch", path="f.py", old=" = ", new=":")
    assert (kind, message.startswith("old occurs 2 times, at lines 1, 2")) == ("failed", True)
    done = await text(bench, "patch", path="f.py", old=" = ", new=": ", replace_all=True)
    assert done == "changed f.py at 2 places (line 1, 2)"
    assert await bench.sandbox.read_file("f.py") == b"a: 1\nb: 2\n"


async def test_a_patch_by_diff_is_all_or_nothing(bench: Workbench) -> None:
    await text(bench, "write_file", path="f", content="a\nb\nc\n")
    kind, _ = await error(bench, "patch", path="f", diff="@@ -1 +1 @@\n-a\n+A\n@@ -9 +9 @@\n-z\n+Z\n")
    assert kind == "failed"
    assert await bench.sandbox.read_file("f") == b"a\nb\nc\n"
    await text(bench, "patch", path="f", diff="@@ -1 +1 @@\n-a\n+A\n@@ -3 +3 @@\n-c\n+C\n")
    assert await bench.sandbox.read_file("f") == b"A\nb\nC\n"


async def test_a_file_with_windows_line_ends_keeps_them(local: Workbench) -> None:
    await local.sandbox.write_file("win", b"a\r\nb\r\nc\r\n")
    await text(local, "patch", path="win", old="a\nb", new="x\ny\nz")
    await text(local, "patch", path="win", diff="@@ -4 +4 @@\n-c\n+d\n")
    assert await local.sandbox.read_file("win") == b"x\r\ny\r\nz\r\nd\r\n"


async def test_mixed_line_ends_are_left_as_they_are(local: Workbench) -> None:
    await local.sandbox.write_file("mixed", b"a\r\nb\nc\r\n")
    await text(local, "patch", path="mixed", old="b", new="x")
    assert await local.sandbox.read_file("mixed") == b"a\r\nx\nc\r\n"


async def test_a_patch_takes_either_old_and_new_or_a_diff(local: Workbench) -> None:
    await text(local, "write_file", path="f", content="a")
    for more in (
        {},
        {"old": "a"},
        {"new": "b"},
        {"diff": "@@\n-a\n", "old": "a", "new": "b"},
        {"diff": "", "replace_all": True},
    ):
        reason = "give either old and new, or diff"
        assert await error(local, "patch", path="f", **more) == ("bad_arguments", reason)


async def test_parallel_patches_of_one_file_all_take_effect(bench: Workbench) -> None:
    lines = [f"line {number:02}\n" for number in range(30)]
    await text(bench, "write_file", path="f", content="".join(lines))
    await asyncio.gather(
        *(text(bench, "patch", path="f", old=line, new=line.upper()) for line in lines),
    )
    assert (await bench.sandbox.read_file("f")).decode() == "".join(lines).upper()


async def test_what_is_written_is_what_is_read(bench: Workbench) -> None:
    content = "\ttabs, 'quotes', $(dollar) `tick` \\ back\n\U0001f600 é\u2028still the same line\n"
    await text(bench, "write_file", path="odd name -rf $(x).txt", content=content)
    assert (await bench.sandbox.read_file("odd name -rf $(x).txt")).decode() == content
    shown = await text(bench, "read_file", path="odd name -rf $(x).txt")
    assert len(shown.split("\n")) == 2


async def test_an_unwritable_file_is_an_error_for_the_model(local: Workbench) -> None:
    kind, message = await error(local, "write_file", path="/proc/version", content="x")
    assert kind == "failed"
    assert "/proc/version" in message
