"""How docker is called; and, where an engine answers, what its sandbox does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.config.settings import SandboxSettings
from hermes.errors import SandboxError
from hermes.sandbox import open_sandbox, unusable_reason
from hermes.sandbox.docker import exec_argv, kill_argv, run_argv, shell_argv
from hermes.sandbox.workspace import Workspace
from tests.sandbox.conftest import need

SETTINGS = SandboxSettings(
    backend="docker", image="python:3.11-slim", memory_mb=512, max_processes=99, cpu_s=60
)


def test_the_container_is_started_with_every_restriction() -> None:
    argv = run_argv("/usr/bin/docker", SETTINGS, Path("/w"), "hermes-1", (1000, 1000), rootless=True)
    assert " ".join(argv[: argv.index("--entrypoint")]) == (
        "/usr/bin/docker run --interactive --rm --init --name hermes-1 --label research.hermes.sandbox"
        " --network none --cap-drop ALL --security-opt no-new-privileges --read-only"
        " --tmpfs /tmp:rw,exec,nosuid,nodev,size=512m --pids-limit 99"
        " --memory 512m --memory-swap 512m --cpus 2 --ulimit cpu=60 --ulimit core=0"
        " --user 1000:1000 --mount type=bind,source=/w,target=/workspace"
        " --workdir /workspace --env HOME=/workspace --env LANG=C.UTF-8"
    )
    assert argv[argv.index("--entrypoint") :][:3] == ["--entrypoint", "/bin/sh", "python:3.11-slim"]


def test_repositories_of_a_given_workspace_are_mounted_read_only() -> None:
    odd = ("sub/.git", "a,source=/etc,target=/x/.git")
    argv = run_argv("docker", SETTINGS, Path("/w"), "n", (1, 1), rootless=True, read_only=odd)
    mounts = [argv[index + 1] for index, word in enumerate(argv) if word == "--mount"]
    assert mounts == [
        "type=bind,source=/w,target=/workspace",
        "type=bind,source=/w/sub/.git,target=/workspace/sub/.git,readonly",
    ]


def test_no_set_uid_file_stays_in_a_workspace_that_was_given(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep" / "tool"
    file.touch()
    file.chmod(0o6755)
    Workspace.existing(tmp_path).drop_set_uid()
    assert file.stat().st_mode & 0o7777 == 0o755


def test_the_network_is_there_only_if_allowed() -> None:
    allowed = SETTINGS.model_copy(update={"network": True, "network_allow": ("host",)})
    argv = run_argv("docker", allowed, Path("/w"), "n", (1, 1), rootless=True)
    assert argv[argv.index("--network") + 1] == "bridge"


def test_podman_without_root_keeps_the_users_own_id() -> None:
    def argv(engine: str, rootless: bool) -> list[str]:
        return run_argv(f"/usr/bin/{engine}", SETTINGS, Path("/w"), "n", (7, 8), rootless=rootless)

    assert "--userns" not in argv("docker", rootless=True)
    assert "--userns" not in argv("podman", rootless=False)
    kept = argv("podman", rootless=True)
    assert kept[kept.index("--userns") + 1] == "keep-id:uid=7,gid=8"


def test_a_command_is_executed_with_its_mark_and_variables() -> None:
    argv = exec_argv("docker", "box", ["prog", "a b"], cwd="/x", env={"K": "v w"}, mark="m1", stdin=True)
    start, end = argv.index("K=v w"), argv.index("prog")
    assert argv[:start] == ["docker", "exec", "--interactive", "--env"]
    assert argv[start + 1 : end] == ["--env", "HERMES_COMMAND=m1", "--workdir", "/x", "box"]
    assert argv[end:] == ["prog", "a b"]
    assert "--interactive" not in exec_argv("docker", "box", ["p"], cwd="/", env={}, mark="m", stdin=False)


def test_a_command_line_is_passed_on_as_one_argument() -> None:
    assert shell_argv("echo 'a'; rm $x")[-2:] == ["sh", "echo 'a'; rm $x"]


def test_a_command_is_killed_by_its_mark() -> None:
    argv = kill_argv("docker", "box", "m1")
    assert argv[:4] == ["docker", "exec", "box", "/bin/sh"]
    assert argv[-1] == "m1"


async def test_without_an_engine_the_error_says_so_and_what_to_do() -> None:
    reason = unusable_reason("docker")
    if reason is None:
        pytest.skip("needs a machine without a container engine")
    with pytest.raises(SandboxError) as error:
        await open_sandbox(SETTINGS, interactive=False)
    assert "docker" in error.value.hint
    assert error.value.message


async def test_a_real_container_runs_reads_writes_and_is_bounded() -> None:
    need("docker")
    sandbox = await open_sandbox(SETTINGS, interactive=False)
    try:
        assert (await sandbox.run("echo hi; id -u; exit 3")).exit_code == 3
        await sandbox.write_file("a/b", b"x")
        assert (await sandbox.run("cat a/b; echo y > a/c")).output == "x"
        assert await sandbox.read_file("a/c") == b"y\n"
        assert (await sandbox.run("touch /usr/x")).exit_code != 0
        assert (await sandbox.run("sleep 60", timeout_s=1)).timed_out
        assert (await sandbox.run("pgrep -c sleep || ls /proc | grep -c '^[0-9]'")).output
        process = await sandbox.start("read x; echo got $x; sleep 60")
        await process.write("hello\n")
        await process.wait(1)
        assert process.output() == "got hello\n"
        await process.kill()
    finally:
        await sandbox.close()


WRITABLE = """
import os
kinds = {line.split()[1]: line.split()[2] for line in open('/proc/mounts')}
found = set()
for folder, folders, _ in os.walk('/'):
    folders[:] = [name for name in folders if (folder, name) != ('/', 'proc')]
    try:
        place = os.path.join(folder, 'hermes-was-here')
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY))
        os.unlink(place)
    except OSError:
        continue
    mount = max((m for m in kinds if (folder + '/').startswith(m.rstrip('/') + '/')), key=len)
    found.add('in memory' if kinds[mount] in ('tmpfs', 'mqueue') else mount)
print(', '.join(sorted(found)))
for name in ('sys/kernel/core_pattern', 'sysrq-trigger'):
    assert not os.access('/proc/' + name, os.W_OK)
"""


async def test_in_a_real_container_only_the_workspace_and_places_of_its_own_can_be_written() -> None:
    need("docker")
    sandbox = await open_sandbox(SETTINGS, interactive=False)
    try:
        await sandbox.write_file("look.py", WRITABLE.encode())
        looked = await sandbox.run("python3 look.py")
        assert looked.exit_code == 0, looked.output
        assert looked.output == "/workspace, in memory\n"  # /tmp, /dev/shm and the like end with it
        assert (await sandbox.run("ls /sys/class/net")).output.split() == ["lo"]
    finally:
        await sandbox.close()
