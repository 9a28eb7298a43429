"""What every sandbox promises, tried in each that works on this machine alone."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from hermes.config.settings import SandboxSettings
from hermes.disk.trees import remove_tree
from hermes.errors import SandboxError
from hermes.sandbox import open_sandbox
from hermes.sandbox.base import Sandbox
from hermes.sandbox.guards.bare_python import bare_python
from tests.sandbox.conftest import BACKENDS, Marker, need


async def test_output_of_both_streams_comes_in_order_with_the_exit_code(sandbox: Sandbox) -> None:
    result = await sandbox.run("echo one; echo two >&2; echo three; exit 3")
    assert (result.output, result.exit_code) == ("one\ntwo\nthree\n", 3)
    assert not result.timed_out
    assert not result.truncated


@pytest.mark.parametrize(
    "command, code", [("kill -9 $$", 137), ("kill -TERM $$", 143), ("exit 255", 255), ("no-such", 127)]
)
async def test_a_killed_command_reports_128_and_its_signal(sandbox: Sandbox, command: str, code: int) -> None:
    assert (await sandbox.run(command)).exit_code == code


async def test_commands_start_in_the_workspace_or_where_they_are_told(sandbox: Sandbox) -> None:
    await sandbox.write_file("sub/file", b"x")
    assert (await sandbox.run("pwd")).output == f"{sandbox.workspace}\n"
    for cwd in ("sub", f"{sandbox.workspace}/sub"):
        assert (await sandbox.run("pwd", cwd=cwd)).output == f"{sandbox.workspace}/sub\n"
    assert (await sandbox.run("pwd", cwd="/usr")).output == "/usr\n"


async def test_a_missing_directory_is_an_os_error(sandbox: Sandbox) -> None:
    await sandbox.write_file("file", b"x")
    for run in (sandbox.run, sandbox.start):
        with pytest.raises(FileNotFoundError):
            await run("true", cwd="missing")
        with pytest.raises(NotADirectoryError):
            await run("true", cwd="file")


async def test_a_command_that_is_too_long_or_holds_a_nul_is_an_os_error(sandbox: Sandbox) -> None:
    for command in ("#" + "x" * 3_000_000, "echo \0", "echo \ud800"):
        with pytest.raises(OSError):
            await sandbox.run(command)
    assert (await sandbox.run("echo fine")).output == "fine\n"


async def test_input_and_variables_are_passed_on(sandbox: Sandbox) -> None:
    big = b"0123456789" * 300_000
    assert (await sandbox.run("wc -c", stdin=big)).output.strip() == str(len(big))
    assert (await sandbox.run("cat")).output == ""  # without input there is nothing to wait for
    assert (await sandbox.run("true", stdin=big)).exit_code == 0  # nor does anyone have to read it
    odd = {"ODD": "a b'\"$\n\\é"}
    assert (await sandbox.run('printf %s "$ODD"', env=odd)).output == odd["ODD"]


_NEST = "import os\nfor _ in range({}): os.mkdir({!r}); os.chdir({!r})\nos.mkdir('end', 0)"


@pytest.mark.parametrize("depth, name", [(3_000, "d"), (1_500, "deep-folder"), (400, "long" * 60)])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_folders_of_any_depth_are_graded_and_removed(
    backend: str, depth: int, name: str, tmp_path: Path
) -> None:
    need(backend)
    sandbox = await open_sandbox(SandboxSettings(backend=backend), interactive=False)
    folder = Path(sandbox.workspace) if backend == "local" else None
    await sandbox.write_file("result.txt", b"42")
    result = await sandbox.run("python3 -", stdin=_NEST.format(depth, name, name).encode())
    assert result.exit_code == 0, result.output
    await sandbox.kill_all()
    assert await sandbox.read_file("result.txt") == b"42"
    await sandbox.close()
    assert folder is None or not folder.exists()


async def test_a_workspace_of_ones_own_with_deep_folders_is_closed_in_order(tmp_path: Path) -> None:
    """git is made harmless behind them, too."""
    need("bubblewrap")
    (tmp_path / "work").mkdir()
    sandbox = await open_sandbox(
        SandboxSettings(backend="bubblewrap"), interactive=False, workspace=tmp_path / "work"
    )
    nest = _NEST.format(3_000, "d", "d")
    assert (await sandbox.run("python3 -", stdin=nest.encode())).exit_code == 0
    made = await sandbox.run("mkdir -p z/.git/hooks && echo '[core]\nfsmonitor = touch x' > z/.git/config")
    assert made.exit_code == 0, made.output
    await sandbox.close()
    assert not (tmp_path / "work" / "z" / ".git" / "hooks").exists()
    assert "fsmonitor" not in (tmp_path / "work" / "z" / ".git" / "config").read_text()
    assert remove_tree(tmp_path / "work")


async def test_bash_is_spoken_where_there_is_one(sandbox: Sandbox) -> None:
    assert (await sandbox.run("a=(x y); [[ ${a[1]} == y ]] && echo yes")).output == "yes\n"


async def test_large_output_keeps_its_ends_and_says_what_is_missing(sandbox: Sandbox) -> None:
    result = await sandbox.run("seq 1 1000000")
    assert result.truncated
    assert len(result.output) < 1_100_000
    assert result.output.startswith("1\n2\n3\n")
    assert result.output.endswith("999999\n1000000\n")
    assert "bytes left out" in result.output


async def test_bytes_that_are_no_text_are_replaced(sandbox: Sandbox) -> None:
    assert (await sandbox.run("printf 'a\\377b\\303\\251'")).output == "a�bé"


async def test_a_command_has_no_open_files_but_its_own_three(sandbox: Sandbox) -> None:
    script = "import os; print(sorted(os.listdir('/proc/self/fd')))"
    output = (await sandbox.run(f'{bare_python().executable} -I -S -c "{script}"')).output
    assert output == "['0', '1', '2', '3']\n"  # 3 is the listing itself


async def test_killing_ends_everything_the_command_started(sandbox: Sandbox, marker: Marker) -> None:
    sleep = f"sleep {marker.seconds}"
    command = f"""
        {sleep} &
        (setsid sh -c '{sleep} >/dev/null 2>&1 </dev/null' &)
        setsid sh -c 'trap "" TERM HUP INT; (env -i {sleep} & ); wait; {sleep}' >/dev/null 2>&1 &
        {sleep}
    """
    process = await sandbox.start(command)
    await asyncio.to_thread(marker.wait_running, 5)
    await process.kill()
    assert marker.running() == []


async def test_a_time_out_kills_and_keeps_the_output_so_far(sandbox: Sandbox, marker: Marker) -> None:
    command = (
        f"echo started; (setsid sleep {marker.seconds} &); trap '' TERM; sleep {marker.seconds}; sleep 900"
    )
    result = await sandbox.run(command, timeout_s=1.5)
    assert (result.timed_out, result.exit_code, result.output) == (True, 124, "started\n")
    assert marker.running() == []


async def test_what_a_finished_command_leaves_running_is_ended(sandbox: Sandbox, marker: Marker) -> None:
    result = await sandbox.run(f"nohup setsid sleep {marker.seconds} & sleep {marker.seconds} & echo done")
    assert result.exit_code == 0
    assert "done" in result.output
    assert marker.running() == []


async def test_a_cancelled_call_leaves_nothing_running(sandbox: Sandbox, marker: Marker) -> None:
    running = asyncio.create_task(sandbox.run(f"sleep {marker.seconds} & sleep {marker.seconds}"))
    await asyncio.to_thread(marker.wait_running, 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.to_thread(marker.wait_running, 0)
    assert (await sandbox.run("echo fine")).output == "fine\n"


async def test_a_call_cancelled_at_any_moment_leaves_nothing_running(
    sandbox: Sandbox, marker: Marker
) -> None:
    for pauses in range(12):
        running = asyncio.create_task(sandbox.run(f"sleep {marker.seconds}"))
        for _ in range(pauses):
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert (await sandbox.run("echo fine")).output == "fine\n"
    await asyncio.to_thread(marker.wait_running, 0)


async def test_many_commands_at_once_do_not_mix(sandbox: Sandbox) -> None:
    results = await asyncio.gather(*(sandbox.run(f"echo {i}; exit {i}") for i in range(40)))
    assert [(result.output, result.exit_code) for result in results] == [(f"{i}\n", i) for i in range(40)]


async def test_many_commands_leave_no_descriptor_open(sandbox: Sandbox) -> None:
    await sandbox.run("true")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        await sandbox.run("true", stdin=b"x")
        await (await sandbox.start("true")).wait(20)
        with pytest.raises(OSError):
            await sandbox.run("true", cwd="missing")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_background_process_is_followed_fed_and_ended(sandbox: Sandbox, marker: Marker) -> None:
    process = await sandbox.start(
        f"read line; echo got $line; sleep {marker.seconds} & sleep {marker.seconds}"
    )
    assert process.exit_code is None
    assert process.command.startswith("read line")
    await process.write("hello\n")
    await asyncio.to_thread(marker.wait_running, 2)
    assert process.output() == "got hello\n"
    assert await process.wait(0.01) is None
    await process.kill()
    assert marker.running() == []
    assert process.exit_code in (137, 143)
    assert await process.wait(1) == process.exit_code
    await process.kill()  # once more does no harm
    with pytest.raises(OSError):
        await process.write("more\n")


async def test_writing_to_a_process_that_does_not_read_can_be_given_up(sandbox: Sandbox) -> None:
    process = await sandbox.start("sleep 900")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await process.write("x" * 1_000_000)
    await process.kill()


async def test_background_processes_have_ids_and_exit_codes_of_their_own(sandbox: Sandbox) -> None:
    processes = [await sandbox.start(f"exit {code}") for code in (0, 7)]
    assert [await process.wait(20) for process in processes] == [0, 7]
    assert len({process.id for process in processes}) == 2


async def test_a_server_in_the_background_can_be_reached_by_the_next_command(sandbox: Sandbox) -> None:
    serve = "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler); "
    serve += "open('port', 'w').write(str(s.server_port) + chr(10)); s.serve_forever()"
    process = await sandbox.start(f'{bare_python().executable} -u -c "{serve}"')
    fetch = "import urllib.request as u; port = open('port').read().strip(); "
    fetch += "print(u.urlopen(f'http://127.0.0.1:{port}/port').status)"
    wait = "until [ -s port ]; do sleep 0.05; done"
    assert (await sandbox.run(f'{wait}; {bare_python().executable} -c "{fetch}"')).output == "200\n"
    await process.kill()


async def test_the_temporary_directory_lasts_from_command_to_command(sandbox: Sandbox) -> None:
    path = (await sandbox.run("mktemp")).output.strip()
    await sandbox.run(f"echo kept > {path}")
    assert await sandbox.read_file(path) == b"kept\n"
    assert (await sandbox.run(f"cat {path}; rm {path}")).output == "kept\n"


async def test_files_are_read_and_written_by_relative_and_absolute_path(sandbox: Sandbox) -> None:
    await sandbox.write_file("a/b/c.bin", bytes(range(256)))
    assert await sandbox.read_file(f"{sandbox.workspace}/a/b/c.bin") == bytes(range(256))
    assert await sandbox.read_file("a/b/c.bin", 3) == b"\0\1\2"
    assert (await sandbox.run("wc -c < a/b/c.bin")).output.strip() == "256"
    await sandbox.run("echo made > made; chmod 700 made a/b/c.bin")
    assert await sandbox.read_file("made") == b"made\n"
    await sandbox.write_file("made", b"new")
    assert (
        await sandbox.run("cat made; stat -c %a made; echo more >> made; cat made")
    ).output == "new700\nnewmore\n"


async def test_written_files_belong_to_whoever_runs_the_commands(sandbox: Sandbox) -> None:
    await sandbox.write_file("new/deep/file", b"x")
    result = await sandbox.run("echo y >> new/deep/file && mv new moved && rm -r moved && echo ok")
    assert result.output == "ok\n"


async def test_wrong_paths_are_told_apart(sandbox: Sandbox) -> None:
    await sandbox.write_file("file", b"x")
    await sandbox.run("mkdir dir; mkfifo fifo")
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("missing")
    with pytest.raises(IsADirectoryError):
        await sandbox.read_file("dir")
    with pytest.raises(IsADirectoryError):
        await sandbox.write_file("dir", b"x")
    with pytest.raises(NotADirectoryError):
        await sandbox.write_file("file/below", b"x")
    with pytest.raises(PermissionError):
        await sandbox.read_file("fifo")  # and does not wait for a writer
    await sandbox.run("ln -s loop loop")
    for path in ("", "a\0b", "x" * 5000, "\ud800", "loop", "loop/x"):
        with pytest.raises(OSError):
            await sandbox.read_file(path)
        with pytest.raises(OSError):
            await sandbox.write_file(path, b"x")


async def test_links_inside_the_workspace_are_followed(sandbox: Sandbox) -> None:
    await sandbox.write_file("real/file", b"x")
    await sandbox.run(f"ln -s real link; ln -s {sandbox.workspace}/real absolute; ln -s real/file file")
    for path in ("link/file", "absolute/file", "file"):
        assert await sandbox.read_file(path) == b"x"
    await sandbox.write_file("file", b"through")
    assert await sandbox.read_file("real/file") == b"through"


async def test_no_half_written_file_is_left_when_writing_fails(sandbox: Sandbox) -> None:
    await sandbox.run("mkdir full")
    with pytest.raises(OSError):
        await sandbox.write_file("full/" + "n" * 300, b"x")
    assert (await sandbox.run("ls -A full")).output == ""


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_fresh_workspace_is_private_and_removed_at_the_end(backend: str, tmp_path: Path) -> None:
    need(backend)
    parent = tmp_path / "deep" / "workspaces"
    sandbox = await open_sandbox(SandboxSettings(backend=backend), interactive=False, workspaces=parent)
    (made,) = parent.iterdir()
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    await sandbox.run("mkdir -p a/b; touch a/b/c; chmod 000 a/b; chmod 500 a; ln -s / root")
    await sandbox.close()
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_given_workspace_stays(backend: str, tmp_path: Path) -> None:
    need(backend)
    (tmp_path / "kept").write_text("x")
    sandbox = await open_sandbox(SandboxSettings(backend=backend), interactive=False, workspace=tmp_path)
    assert (await sandbox.run("cat kept; echo new > new")).output == "x"
    await sandbox.close()
    assert (tmp_path / "new").read_text() == "new\n"
    assert (tmp_path / "new").stat().st_uid == os.geteuid()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_closing_ends_what_still_runs_and_later_commands_fail_clearly(
    backend: str, marker: Marker
) -> None:
    need(backend)
    sandbox = await open_sandbox(SandboxSettings(backend=backend), interactive=False)
    process = await sandbox.start(f"sleep {marker.seconds}")
    waiting = asyncio.create_task(sandbox.run(f"sleep {marker.seconds}"))
    await asyncio.to_thread(marker.wait_running, 2)
    await sandbox.close()
    assert marker.running() == []
    assert process.exit_code == 137
    (ended,) = await asyncio.gather(waiting, return_exceptions=True)
    if not isinstance(ended, SandboxError):  # it was closed before it had reported the start
        assert not isinstance(ended, BaseException) and ended.exit_code == 137
    with pytest.raises(SandboxError, match="ended"):
        await sandbox.run("true")
