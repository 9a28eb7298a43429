"""Trials in bubblewrap: solutions score, nothing does not, and nobody steals a reward."""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hermes.config.settings import SandboxSettings
from hermes.envs.harbor.cheats import CHEATS
from hermes.envs.harbor.place import BubblewrapPlaces, PlaceOptions
from hermes.envs.harbor.roots import remove_roots
from hermes.envs.harbor.schema import TaskError
from hermes.envs.harbor.task import read_task
from hermes.envs.harbor.trial import Trial, open_trial, sweep, trials_folder
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.errors import SandboxError
from hermes.sandbox.base import Sandbox
from hermes.sandbox.open import unusable_reason
from tests.envs.harbor.folders import DOCKERFILE, cleaning_process, write_task

pytestmark = pytest.mark.skipif(
    unusable_reason("bubblewrap") is not None, reason=f"bubblewrap: {unusable_reason('bubblewrap')}"
)
Agent = Callable[[Sandbox], Awaitable[object]]


def shell(command: str, timeout_s: float = 60) -> Agent:
    return lambda sandbox: sandbox.run(command, timeout_s=timeout_s)


async def play(folder: Path, home: Path, agent: Agent | None, **options: object) -> RewardResult:
    """The reward of a task after this agent; None plays the reference solution."""
    places = BubblewrapPlaces(home, SandboxSettings(backend="bubblewrap"), PlaceOptions(**options))  # type: ignore[arg-type]
    async with open_trial(read_task(folder), places, home) as trial:
        while trial.stage is not None:
            await trial.start()
            await act(trial, agent)
            await trial.score()
        return trial.reward()


async def act(trial: Trial, agent: Agent | None) -> None:
    if agent is None:
        ended = await trial.solve()
        assert ended.exit_code == 0, ended.output
        return
    sandbox = await trial.open_agent()
    try:
        await agent(sandbox)
        await sandbox.kill_all()
    finally:
        await sandbox.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


async def test_a_solution_scores_and_nothing_does_not(tmp_path: Path, home: Path) -> None:
    folder = write_task(tmp_path / "t")
    assert (await play(folder, home, None)).value == 1
    assert (await play(folder, home, shell("true"))).value == 0
    assert (await play(folder, home, shell("echo 42 > answer.txt"))).value == 1  # /app is where it works
    assert not list(trials_folder(home).iterdir())


async def test_the_image_is_what_the_dockerfile_says(tmp_path: Path, home: Path) -> None:
    dockerfile = """\
# a comment
ARG WHO=world
FROM public.ecr.aws/docker/library/debian:12@sha256:0123 AS base
RUN mkdir -p /logs/verifier
ARG WHO
ENV GREETING="hello there" DIR=/srv/data
ENV OLD style value
WORKDIR $DIR
COPY seed.txt tree/ ./
COPY --chmod=755 seed.txt /opt/tool/
COPY <<EOF /srv/data/here.txt
a line
EOF
RUN apt-get update && apt-get install -y --no-install-recommends coreutils && rm -rf /var/lib/apt/lists/* \\
    # a comment between lines
    && echo "$GREETING" > made.txt
RUN <<EOF
echo one >> made.txt
echo two >> made.txt
EOF
RUN ["sh", "-c", "pwd >> made.txt"]
CMD ["bash"]
"""
    files = {"environment/seed.txt": "seed\n", "environment/tree/a/b.txt": "leaf\n"}
    check = (
        '[ "$(cat made.txt)" = "hello there\none\ntwo\n/srv/data" ] && '
        '[ "$(cat a/b.txt seed.txt)" = "leaf\nseed" ] && [ -x /opt/tool/seed.txt ] && '
        '[ "$(cat here.txt)" = "a line" ] && [ "$OLD" = "style value" ]'
    )
    test = f"if {check}; then echo 1; else cat made.txt; ls -la . a; env; echo 0; fi | tee /tmp/out; "
    test += "tail -n 1 /tmp/out > /logs/verifier/reward.txt"
    folder = write_task(tmp_path / "t", dockerfile=dockerfile, files=files, test=test)
    reward = await play(folder, home, shell("true"))
    assert reward.value == 1, reward.detail


@pytest.mark.parametrize(
    ("dockerfile", "named"),
    [
        ("FROM alpine:3", "alpine:3"),
        ("FROM debian:12\nRUN apt-get install -y no-such-package-here", "no-such-package-here"),
        ("FROM debian:12\nFROM debian:12", "several stages"),
        ("FROM debian:12\nUSER nobody", "USER"),
        ('FROM debian:12\nENTRYPOINT ["x"]', "ENTRYPOINT"),
        ("FROM debian:12\nCOPY x /tests/", "/tests"),
        ("FROM debian:12\nCOPY x /usr/lib/x", "/usr"),
        ("FROM debian:12\nCOPY ../../x /app/", "outside"),
        ("FROM debian:12\nCOPY missing /app/", "missing"),
        ("FROM debian:12\nADD https://example.org/x /app/", "ADD"),
        ("FROM debian:12\nRUN --mount=type=secret,id=a true", "--mount"),
        ("FROM debian:12\nRUN echo why >&2; exit 3", "why"),
        ("RUN true", "before FROM"),
        ("FROM debian:12\nRUN <<EOF\ntrue", "never comes"),
        ("", "no FROM"),
    ],
)
async def test_what_bubblewrap_cannot_build_is_refused(
    tmp_path: Path, home: Path, dockerfile: str, named: str
) -> None:
    folder = write_task(tmp_path / "t", dockerfile=dockerfile)
    with pytest.raises(TaskError) as raised:
        await play(folder, home, shell("true"))
    assert named in raised.value.message
    assert not list((home / "harbor/trials").glob("*"))


async def test_an_image_is_built_once(tmp_path: Path, home: Path) -> None:
    dockerfile = f"{DOCKERFILE}RUN head -c 16 /dev/urandom | od -An -tx1 > /app/drawn\n"
    test = "cat /app/drawn; echo 1 > /logs/verifier/reward.txt"
    folder = write_task(tmp_path / "t", dockerfile=dockerfile, test=test)
    first, second = await asyncio.gather(play(folder, home, shell("true")), play(folder, home, shell("true")))
    third = await play(folder, home, shell("rm /app/drawn; echo mine > /app/drawn"))
    assert first.detail == second.detail != third.detail == "mine"
    assert (await play(folder, home, shell("true"))).detail == first.detail  # a trial changes no image
    (folder / "environment/more.txt").write_text("x")
    assert (await play(folder, home, shell("true"))).detail != first.detail
    assert len([path for path in (home / "harbor/roots").iterdir() if path.is_dir()]) == 2


async def test_a_build_without_end_is_ended(tmp_path: Path, home: Path) -> None:
    toml = "[environment]\nbuild_timeout_sec = 1"
    folder = write_task(tmp_path / "t", toml=toml, dockerfile="FROM debian:12\nRUN sleep 100")
    with pytest.raises(TaskError):
        await play(folder, home, shell("true"))
    assert not [path for path in (home / "harbor/roots").iterdir() if path.is_dir()]


@pytest.mark.parametrize("cheat", CHEATS)
async def test_nobody_steals_a_reward(tmp_path: Path, home: Path, cheat: str) -> None:
    """These tests give no reward for anything, so any reward is a stolen one."""
    looks = "python3 -c pass; bash -lc true; ls -A /logs/verifier | grep . && echo NOT EMPTY; "
    looks += "ls -A /tests | grep -v -x test.sh && echo PLANTED"
    gives = write_task(tmp_path / "gives", test=f"{looks}\necho 0 > /logs/verifier/reward.txt")
    reward = await play(gives, home, shell(CHEATS[cheat]))
    assert reward.value == 0
    assert "NOT EMPTY" not in reward.detail and "PLANTED" not in reward.detail
    with pytest.raises(GraderError, match="neither"):
        await play(write_task(tmp_path / "gives none", test=looks), home, shell(CHEATS[cheat]))


async def test_tests_and_solution_are_not_in_the_agents_reach(tmp_path: Path, home: Path) -> None:
    outputs: list[str] = []

    async def look(sandbox: Sandbox) -> None:
        search = "grep -rsl MARKED / --include=*.sh --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr"
        command = "cat /tests/test.sh /solution/solve.sh; ls -A /logs/verifier; touch /logs/verifier/x"
        result = await sandbox.run(f"{command}; mkdir /tests; {search}")
        outputs.append(result.output)

    test = "# MARKED\necho 0 > /logs/verifier/reward.txt"
    await play(write_task(tmp_path / "t", test=test, solution="# MARKED\n"), home, look)
    assert "MARKED" not in outputs[0]
    assert outputs[0].count("No such file") == 2 and outputs[0].count("Read-only file system") == 2, outputs[
        0
    ]


async def test_the_verifier_has_a_clean_environment(tmp_path: Path, home: Path) -> None:
    toml = '[environment]\nenv = {PLACE = "task"}\n[verifier]\nenv = {KEY = "mine"}\n'
    test = 'echo "$PLACE $KEY $STOLEN $BASH_ENV"; cat /proc/[0-9]*/comm | grep -c sleep; '
    test += "cat /app/key; echo 1 > /logs/verifier/reward.txt"
    agent = shell("export STOLEN=1; nohup setsid sleep 1000 > /dev/null 2>&1 & echo key:$KEY > /app/key")
    reward = await play(write_task(tmp_path / "t", toml=toml, test=test), home, agent)
    assert reward.detail.split() == ["task", "mine", "0", "key:"]


async def test_tests_that_never_end_are_an_error_of_the_task(tmp_path: Path, home: Path) -> None:
    folder = write_task(tmp_path / "t", toml="[verifier]\ntimeout_sec = 1", test="sleep 1000")
    with pytest.raises(GraderError, match="did not end"):
        await play(folder, home, shell("true"))


@pytest.mark.parametrize("reward", ["one", "nan", "", "1e999"])
async def test_a_reward_that_is_no_number_is_an_error(tmp_path: Path, home: Path, reward: str) -> None:
    folder = write_task(tmp_path / "t", test=f"printf '{reward}' > /logs/verifier/reward.txt")
    with pytest.raises(GraderError):
        await play(folder, home, shell("true"))


async def test_rewards_that_are_links_pipes_or_floods_are_errors(tmp_path: Path, home: Path) -> None:
    commands = (
        "ln -s /etc/hostname reward.txt",
        "mkfifo reward.txt",
        "mkdir reward.txt",
        "yes | head -c 900000 > reward.txt",
    )
    for number, command in enumerate(commands):
        folder = write_task(tmp_path / str(number), test=f"cd /logs/verifier; {command}")
        with pytest.raises(GraderError):
            await play(folder, home, shell("true"))


async def test_a_separate_verifier_has_the_artifacts_and_nothing_else(tmp_path: Path, home: Path) -> None:
    toml = (
        'artifacts = ["/app/answer.txt", {source = "/app/dir", destination = "/srv/dir"}, "/app/missing"]\n'
        '[verifier]\nenvironment_mode = "separate"\n'
        '[[verifier.collect]]\ncommand = "echo late > /logs/artifacts/l"\n'
    )
    test = (
        "ls -A /app; cat answer.txt /srv/dir/f /logs/artifacts/l /app/dir/f 2> /dev/null; "
        "cat /srv/dir/link; echo 1 > /logs/verifier/reward.txt"
    )
    agent = shell(
        "echo 42 > answer.txt; mkdir dir; echo f > dir/f; ln -s /etc/shadow dir/link; touch left /root/x"
    )
    reward = await play(write_task(tmp_path / "t", toml=toml, test=test), home, agent)
    assert reward.detail.split()[:4] == ["answer.txt", "42", "f", "late"]
    assert "left" not in reward.detail and "root:" not in reward.detail


async def test_steps_share_files_and_stop_below_their_least(tmp_path: Path, home: Path) -> None:
    toml = '[[steps]]\nname = "one"\nmin_reward = 1\n[[steps]]\nname = "two"\n'
    test = "n=$(cat /app/count 2> /dev/null || echo 0); ls; "
    test += "echo $(( n >= $(cat /tests/least) )) > /logs/verifier/reward.txt"
    folder = write_task(tmp_path / "t", toml=toml, solution=None)
    (folder / "instruction.md").unlink()
    for least, name in (("1", "one"), ("2", "two")):
        files = {
            "instruction.md": "Count.",
            "tests/test.sh": test,
            "tests/least": least,
            f"workdir/{name}.txt": "x",
            "solution/solve.sh": "echo $(( $(cat /app/count 2> /dev/null || echo 0) + 1 )) > /app/count",
        }
        for path, text in files.items():
            (folder / "steps" / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "steps" / name / path).write_text(text)
    both = await play(folder, home, None)
    assert both.value == 1 and "two.txt" in both.detail
    never = await play(folder, home, shell("true"))
    assert never.value == 0 and "one.txt" in never.detail and "two.txt" not in never.detail
    assert (await play(folder, home, shell("echo 1 > /app/count"))).value == 0.5


async def test_a_health_check_is_waited_for(tmp_path: Path, home: Path) -> None:
    check = '[environment.healthcheck]\ninterval_sec = 0.05\nretries = 3\ncommand = "%s"'
    patient = "n=$(cat /app/n || echo 0); echo $((n + 1)) > /app/n; [ $n -ge 2 ]"
    assert (await play(write_task(tmp_path / "a", toml=check % patient), home, None)).value == 1
    with pytest.raises(SandboxError, match="health check"):
        await play(write_task(tmp_path / "b", toml=check % "false"), home, None)


async def test_what_a_machine_or_place_cannot_give_is_refused(tmp_path: Path, home: Path) -> None:
    for toml, named in {
        "[environment]\nmemory_mb = 99999999": "memory_mb",
        '[agent]\nuser = "somebody"': "agent.user",
        '[verifier]\nuser = "1000"': "verifier.user",
    }.items():
        with pytest.raises(TaskError, match=named):
            await play(write_task(tmp_path / named, toml=toml), home, None)
    toml = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["example.org"]'
    folder = write_task(tmp_path / "net", toml=toml)
    assert (await play(folder, home, None)).value == 1  # without a network, whatever the task says
    with pytest.raises(TaskError, match="network_mode"):
        await play(folder, home, None, network="task")


async def test_a_trial_that_was_killed_is_swept(tmp_path: Path, home: Path) -> None:
    folder = write_task(tmp_path / "t")
    places = BubblewrapPlaces(home, SandboxSettings(backend="bubblewrap"), PlaceOptions())
    async with open_trial(read_task(folder), places, home):
        killed = trials_folder(home) / "999999999-1-x"
        killed.mkdir()
        (killed / "file").write_text("x")
        assert sweep(home) == 1
        assert len(list(trials_folder(home).iterdir())) == 1


async def test_tests_find_uvx_among_the_wheels(tmp_path: Path, home: Path) -> None:
    """Its cache is not that of the agent's user, and it asks no network."""
    uvx = "#!/bin/sh\n[ -d $UV_FIND_LINKS ] && echo $1 $UV_OFFLINE ${UV_CACHE_DIR%/*/*}\n"
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "uv-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("uv-1.0.data/scripts/uvx", uvx)
        archive.writestr("uv-1.0.data/scripts/../../escape", "")
    test = "[ \"$(uvx pytest)\" = 'pytest 1 /.test-packages' ]; echo $((1 - $?)) > /logs/verifier/reward.txt"
    folder = write_task(tmp_path / "t", test=test)
    planted = shell(
        "mkdir -p /root/.local/bin; echo exit > /root/.local/bin/uvx; chmod +x /root/.local/bin/uvx"
    )
    assert (await play(folder, home, planted, wheels=wheels)).value == 1
    assert (await play(folder, home, planted)).value == 0, "without the wheels there is none"


async def test_trials_go_on_while_another_process_cleans(tmp_path: Path, home: Path) -> None:
    """While roots are built, copied and mounted; and what nobody uses goes."""
    toml = 'artifacts = ["/app/answer.txt"]\n[verifier]\nenvironment_mode = "separate"\n'
    with cleaning_process("from hermes.envs.harbor.roots import remove_roots as clean", home):
        for number in range(4):
            dockerfile = f"{DOCKERFILE}RUN echo {number} > /app/number\n"
            folder = write_task(tmp_path / f"t{number}", toml=toml, dockerfile=dockerfile)
            rewards = await asyncio.gather(*(play(folder, home, None) for _ in range(2)))
            assert [reward.value for reward in rewards] == [1, 1]
    remove_roots(home)
    assert not [path for path in (home / "harbor/roots").iterdir() if path.is_dir()]


async def test_whoever_is_cancelled_while_a_root_is_built_holds_nothing(tmp_path: Path, home: Path) -> None:
    places = BubblewrapPlaces(home, SandboxSettings(backend="bubblewrap"), PlaceOptions())
    task = read_task(write_task(tmp_path / "t", dockerfile=f"{DOCKERFILE}RUN sleep 1\n"))

    async def start() -> None:
        async with open_trial(task, places, home):
            pass

    waiting = [asyncio.create_task(start()) for _ in range(3)]
    await asyncio.sleep(0.3)
    for task_of in waiting:
        task_of.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.wait_for(start(), 60)
    assert remove_roots(home) == 1
