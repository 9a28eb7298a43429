"""What a command in bubblewrap must not reach: keyrings, odd system calls, our package, the host's git."""

from __future__ import annotations

import ctypes
import os
import platform
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hermes.config.settings import SandboxSettings
from hermes.sandbox import open_sandbox
from hermes.sandbox.base import Sandbox, end_processes
from hermes.sandbox.docker import KILL_ALL
from hermes.sandbox.guards import seccomp
from hermes.sandbox.guards.git_guard import harmless_config
from hermes.sandbox.open import unusable_reason

pytestmark = pytest.mark.skipif(unusable_reason("bubblewrap") is not None, reason="no bubblewrap here")
filtered = pytest.mark.skipif(seccomp.machine() is None, reason="there is no system call filter here")
SETTINGS = SandboxSettings(backend="bubblewrap")


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    opened = await open_sandbox(SETTINGS, interactive=False)
    yield opened
    await opened.close()


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A workspace with a repository, as a person has it."""
    git("init", "-q", cwd=tmp_path)
    (tmp_path / "file.txt").write_text("text\n")
    git("add", ".", cwd=tmp_path)
    return tmp_path


def git(*arguments: str, cwd: Path) -> str:
    command = ["git", "-c", "safe.directory=*", "-c", "user.name=n", "-c", "user.email=e@x", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


_PROBE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(a) for a in arguments))
    return ctypes.get_errno() if result == -1 else 0
"""


async def python(sandbox: Sandbox, script: str) -> str:
    await sandbox.write_file("probe.py", (_PROBE + script).encode())
    result = await sandbox.run("python3 -I probe.py", timeout_s=60)
    return result.output.strip()


@pytest.fixture
def host_key() -> Iterator[str]:
    """A key in the session keyring of this process; the kernel's own keyring, no mock."""
    libc = ctypes.CDLL(None, use_errno=True)
    add, control = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]
    libc.syscall(control, 1, None)  # a session keyring of this process
    name, secret = f"hermes-test-{secrets.token_hex(4)}", b"host secret"
    key = libc.syscall(add, b"user", name.encode(), secret, len(secret), -3)
    if key < 0:
        pytest.skip("this kernel has no keyrings")
    yield name
    libc.syscall(control, 3, key)  # revoke


@filtered
async def test_the_session_keyring_of_the_host_is_out_of_reach(sandbox: Sandbox, host_key: str) -> None:
    request, control, add = {"x86_64": (249, 250, 248), "aarch64": (218, 219, 217)}[platform.machine()]
    script = f"""
buffers = [ctypes.create_string_buffer(text) for text in (b"user", b"{host_key}")]
kind, name = map(ctypes.addressof, buffers)
session = 2**32 - 3
print(call({request}, kind, name, 0, 0), call({control}, 0, session, 0))
print(call({add}, kind, name, 0, 0, session))
print(open("/proc/keys").read() if os.path.exists("/proc/keys") else "")
"""
    output = await python(sandbox, script)
    assert output.split()[:3] == ["1", "1", "1"]
    assert host_key not in output


@filtered
async def test_refused_system_calls_are_refused(sandbox: Sandbox) -> None:
    machine = seccomp.machine()
    assert machine is not None
    numbers = {
        name: column[machine.column]
        for name, column in seccomp._REFUSED.items()
        if column[machine.column] is not None
    }
    output = await python(sandbox, f"for n, k in {numbers!r}.items(): print(n, call(k, 0, 0, 0, 0, 0))")
    assert dict(line.split() for line in output.splitlines()) == dict.fromkeys(numbers, "1")


@filtered
@pytest.mark.parametrize(
    ("attempt", "error"),
    [
        ("import socket; socket.socket(40, socket.SOCK_STREAM)", "Address family not supported"),
        ("import socket; socket.socket(38, socket.SOCK_SEQPACKET)", "Address family not supported"),
        ("import socket; socket.socket(17, socket.SOCK_RAW)", "Address family not supported"),
        ("os.memfd_create('x')", "Function not implemented"),
        ("import mmap; mmap.mmap(-1, 1 << 20)", "Cannot allocate memory"),
        ("os.open('f', os.O_CREAT | os.O_WRONLY, 0o4755)", "Operation not permitted"),
        ("open('g', 'w'); os.chmod('g', 0o4755)", "Operation not permitted"),
        ("open('g', 'w'); os.chmod('g', 0o2755)", "Operation not permitted"),
        ("open('g', 'w'); os.fchmod(os.open('g', os.O_RDONLY), 0o6711)", "Operation not permitted"),
        ("os.mknod('h', 0o104755)", "Operation not permitted"),
        ("import fcntl; fcntl.ioctl(0, 0x5412, b'x')", "Operation not permitted"),
        ("os.unshare(0x10000000) if hasattr(os, 'unshare') else os.chroot('/')", "Operation not permitted"),
    ],
)
async def test_what_the_filter_looks_at_is_refused(sandbox: Sandbox, attempt: str, error: str) -> None:
    assert error in await python(sandbox, attempt)


_SET_UID_ATTEMPTS = """
import ctypes, itertools, os, struct
libc = ctypes.CDLL(None, use_errno=True)
made = itertools.count()
def new(): return f"f{next(made)}"
def link(fd): return libc.linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, new().encode(), 0x400)
TMP, W = 0o20000000 | os.O_DIRECTORY, os.O_WRONLY
def how(flags, mode): return ctypes.create_string_buffer(struct.pack("QQQ", flags, mode, 0))
def old(): name = new(); open(name, "w").close(); return name
numbers = dict(openat2=437, fchmodat2=452)
if __import__("platform").machine() == "x86_64":
    numbers |= dict(open=2, creat=85, chmod=90, fchmod=91, mknod=133, openat=257, mknodat=259, fchmodat=268)
else:
    numbers |= dict(fchmod=52, fchmodat=53, mknodat=33, openat=56)
def raw(name, *args):
    return libc.syscall(numbers[name], *(a.encode() if isinstance(a, str) else a for a in args))
def tries(mode):
    for flags in (os.O_CREAT | W, os.O_CREAT | os.O_EXCL | os.O_RDWR, os.O_CREAT | W | (1 << 40)):
        yield lambda: raw("open", new(), flags, mode)
        yield lambda: raw("openat", -100, new(), ctypes.c_ulong(flags), ctypes.c_ulong(mode))
    for flags in (TMP | W, TMP | os.O_RDWR, TMP | W | os.O_EXCL):
        yield lambda: link(raw("openat", -100, ".", flags, mode))
        yield lambda: link(raw("open", ".", flags, mode))
        yield lambda: link(os.open(".", flags, mode))
    yield lambda: raw("openat2", -100, new(), how(os.O_CREAT | W, mode), 24)
    yield lambda: raw("creat", new(), mode)
    yield lambda: raw("mknod", new(), 0o100000 | mode, 0)
    yield lambda: raw("mknodat", -100, new(), 0o100000 | mode, 0)
    yield lambda: raw("chmod", old(), mode)
    yield lambda: raw("fchmod", os.open(old(), W), mode)
    yield lambda: raw("fchmodat", -100, old(), mode)
    yield lambda: raw("fchmodat2", -100, old(), mode, 0)
    yield lambda: raw("fchmod", os.open(".", TMP | W, 0o700), mode)
for mode in (0o4755, 0o2755, 0o6777, 0o4000, 0o104755):
    for attempt in tries(mode):
        try: attempt()
        except Exception: pass
assert link(os.open(".", TMP | W, 0o755)) == 0, "what is not privileged works"
print(next(made), sum(os.stat(n).st_mode & 0o6000 != 0 for n in os.listdir(".")))
"""


@filtered
async def test_no_system_call_makes_a_set_uid_file(sandbox: Sandbox) -> None:
    output = await python(sandbox, _SET_UID_ATTEMPTS)
    assert output.count("\n") == 0, output
    count, privileged = output.split()
    assert int(count) > 60 and privileged == "0"


@filtered
async def test_a_program_that_needs_nothing_special_runs(sandbox: Sandbox) -> None:
    script = """
import concurrent.futures, multiprocessing, socket, sqlite3, subprocess, tempfile, threading, asyncio
if __name__ == "__main__":
    with concurrent.futures.ThreadPoolExecutor() as pool: assert list(pool.map(abs, [-1])) == [1]
    multiprocessing.Lock(); multiprocessing.Value("i")
    a, b = socket.socketpair(); socket.create_server(("127.0.0.1", 0)); asyncio.run(asyncio.sleep(0))
    subprocess.run(["/bin/sh", "-c", "mkdir d; chmod 755 d; cp -a d e"], check=True)
    tempfile.TemporaryFile(); sqlite3.connect("x.db").execute("create table t (a)")
    print("fine")
"""
    assert await python(sandbox, script) == "fine"


async def test_nothing_of_ours_is_in_reach_of_a_command(sandbox: Sandbox) -> None:
    for module in ("hermes", "reasoning_gym", "math_verify", "torch"):
        output = await python(sandbox, f"import {module}")
        assert f"No module named '{module}'" in output
    found = await sandbox.run(
        "find / -xdev \\( -name 'code_problems*' -o -name 'reasoning_gym*' \\) 2>/dev/null"
    )
    assert found.output == ""
    listed = await sandbox.run(f"ls {sys.prefix} {Path(__file__).parents[2]}")
    assert "No such file" in listed.output


async def test_a_repository_that_was_given_cannot_be_made_to_run_programs(given: Path) -> None:
    sandbox = await open_sandbox(SETTINGS, interactive=False, workspace=given)
    payload = "#!/bin/sh\\ntouch $PWD/owned\\n"
    try:
        for attack in (
            "git config core.fsmonitor ./evil.sh",
            "echo '[core] fsmonitor = ./evil.sh' >> .git/config",
            "mv .git old; cp -r old .git && rm -rf old && git config core.fsmonitor ./evil.sh",
            "rm -rf .git; git init -q . && git config core.fsmonitor ./evil.sh",
            f"printf '{payload}' > .git/hooks/post-index-change; chmod +x .git/hooks/post-index-change",
            "echo 'gitdir: evil' > .git",
            "ln -sfn evil .git",
        ):
            await sandbox.run(f"printf '{payload}' > evil.sh; chmod +x evil.sh; {attack}")
        for path in (".git/config", "./x/../.git/config", "/workspace/.git/hooks/pre-commit", ".GIT/config"):
            with pytest.raises(PermissionError):
                await sandbox.write_file(path, b"[core]\n\tfsmonitor = ./evil.sh\n")
        git("status", cwd=given)
        git("add", ".", cwd=given)
        assert not (given / "owned").exists()
        assert "text" in (await sandbox.run("git -c safe.directory='*' show :file.txt")).output
    finally:
        await sandbox.close()
    git("status", cwd=given)
    assert not (given / "owned").exists()


async def test_a_repository_made_in_the_sandbox_is_harmless_afterwards(tmp_path: Path) -> None:
    sandbox = await open_sandbox(SETTINGS, interactive=False, workspace=tmp_path)
    payload = "#!/bin/sh\\ntouch $PWD/owned\\n"
    try:
        made = await sandbox.run(
            f"printf '{payload}' > evil.sh; chmod +x evil.sh; mkdir sub; "
            "for d in . sub; do git init -q $d && git -C $d config core.fsmonitor $PWD/evil.sh "
            "&& git -C $d config include.path /x && git -C $d config user.name Agent "
            "&& cp evil.sh $d/.git/hooks/pre-commit && chmod +x $d/.git/hooks/pre-commit; done"
        )
        assert made.exit_code == 0, made.output
    finally:
        await sandbox.close()
    for directory in (tmp_path, tmp_path / "sub"):
        git("status", cwd=directory)
        git("commit", "--allow-empty", "-m", "first", cwd=directory)
        assert git("config", "--local", "user.name", cwd=directory).strip() == "Agent"
        assert "fsmonitor" not in (directory / ".git" / "config").read_text()
    assert not (tmp_path / "owned").exists() and not (tmp_path / "sub" / "owned").exists()


def test_a_configuration_keeps_only_settings_that_run_nothing() -> None:
    text = (
        '[core]\n\tbare = false\n\tfsmonitor = x\n\thooksPath = h\n\tsshCommand = y\n[remote "a"]\n'
        '\turl = https://host/x.git\n[remote "b"]\n\turl = ext::sh -c x\n[filter "f"]\n\tclean = x\n'
        "[include]\n\tpath = z\n[user]\n\tname = A B\n[alias] s = !x\n[core] pager = x\n"
    )
    kept = harmless_config(text)
    assert "bare = false" in kept and "https://host/x.git" in kept and "name = A B" in kept
    for bad in ("fsmonitor", "hooksPath", "sshCommand", "ext::", "clean", "path", "!x", "pager"):
        assert bad not in kept, bad


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave a set-uid root file")
async def test_no_set_uid_file_is_left_in_a_workspace_of_root(tmp_path: Path) -> None:
    sandbox = await open_sandbox(SETTINGS, interactive=False, workspace=tmp_path)
    try:
        await sandbox.run(
            "cp /bin/sh s; chmod 4755 s; chmod u+s s; install -m 6755 /bin/sh t; mkdir -m 2777 d"
        )
    finally:
        await sandbox.close()
    modes = {path.name: path.stat().st_mode & 0o6000 for path in tmp_path.iterdir()}
    assert "s" in modes and set(modes.values()) == {0}


async def test_what_a_policy_makes_unreadable_is_its_failure_and_not_the_sandboxs(sandbox: Sandbox) -> None:
    await sandbox.run("ln -s /proc/self/mem a; mkfifo b; ln -s c c; mkdir d; ln -s /dev/zero e")
    for path in (
        "/proc/self/mem",
        "/proc/kcore",
        "/dev/zero",
        "a",
        "b",
        "c",
        "d",
        "e",
        "/proc/1/mem",
        "no\nsuch",
    ):
        with pytest.raises(OSError):
            await sandbox.read_file(path, 1000)


async def test_nothing_runs_any_more_when_grading_begins(sandbox: Sandbox) -> None:
    beat = "while :; do date +%N > beat; sleep 0.01; done"
    background = await sandbox.start(beat)
    await sandbox.run(f"setsid sh -c '{beat}' > /dev/null 2>&1 & sleep 0.2")
    await end_processes(sandbox, [])  # even what is not in the list of background processes
    assert background.exit_code is not None
    await sandbox.write_file("beat", b"still")
    await sandbox.run("sleep 0.2")
    assert await sandbox.read_file("beat") == b"still"


def test_the_killer_of_containers_spares_init_and_the_main_process_only(tmp_path: Path) -> None:
    """The script that docker and podman run before grading, in a process namespace of its own."""
    (tmp_path / "kill.sh").write_text(KILL_ALL)
    # The shell of this script is the oldest process: it stands for the container's main process.
    (tmp_path / "main.sh").write_text(
        f"""
cp /bin/sleep "{tmp_path}/x) S 1 1"; "{tmp_path}/x) S 1 1" 300 &
env -i setsid sh -c 'while :; do sleep 0.01; done' &
(trap '' TERM HUP INT; sh -c 'sleep 300; :') &
sh -c 'for i in 1 2 3; do setsid sleep 300 & done'
sleep 0.3
show() {{ for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2> /dev/null; echo; done; }}
show > {tmp_path}/before
sh {tmp_path}/kill.sh; echo $? > {tmp_path}/code
show > {tmp_path}/after
"""
    )
    command = ["bwrap", "--unshare-all", "--dev-bind", "/", "/", "--proc", "/proc", "--", "sh"]
    subprocess.run([*command, str(tmp_path / "main.sh")], capture_output=True, timeout=60, check=True)
    assert (tmp_path / "before").read_text().count("300") >= 5
    assert (tmp_path / "code").read_text() == "0\n"
    after = (tmp_path / "after").read_text()
    assert "300" not in after and "while" not in after and "main.sh" in after
