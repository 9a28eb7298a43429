"""Harbor tasks in containers, whose image is made of this machine's own programs: no registry is needed."""

from __future__ import annotations

import asyncio
import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.config.settings import SandboxSettings
from hermes.envs.harbor.cheats import CHEATS
from hermes.envs.harbor.check import Verdict, check_tasks
from hermes.envs.harbor.dataset import read_tasks
from hermes.envs.harbor.place import PlaceOptions
from hermes.envs.harbor.places import clean, open_places
from hermes.envs.harbor.schema import TaskError
from hermes.envs.harbor.task import read_task
from hermes.envs.harbor.trial import open_trial
from hermes.envs.rewards.result import RewardResult
from hermes.errors import SandboxError
from hermes.sandbox.docker import find_engine
from hermes.sandbox.open import unusable_reason
from hermes.sandbox.task_container import call_engine, container_name, containers, image_name, images
from hermes.store.owner import this_process
from tests.envs.harbor.folders import alone_with_the_engine, cleaning_process, write_task
from tests.envs.harbor.scale import check_with_a_kill, write_tasks

PROGRAMS = (
    *(
        "bash",
        "sh",
        "cat",
        "chmod",
        "cp",
        "dirname",
        "env",
        "find",
        "grep",
        "head",
        "id",
        "ln",
        "ls",
        "mkdir",
    ),
    *("mkdir", "mknod", "mv", "rm", "setsid", "sleep", "tail", "tar", "tee", "touch", "tr", "true", "whoami"),
)
BASE = "localhost/hermes-test-base:1"
DOCKERFILE = f"FROM {BASE}\nWORKDIR /app\nRUN echo 41 > /etc/before\n"
PASSWD = "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n"


def engine_reason() -> str | None:
    return unusable_reason("docker")


pytestmark = pytest.mark.skipif(engine_reason() is not None, reason=f"no container engine: {engine_reason()}")


def libraries(program: str) -> list[str]:
    listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [word for word in listing.split() if word.startswith("/")]


@pytest.fixture(scope="module", autouse=True)
def undisturbed() -> Iterator[None]:
    with alone_with_the_engine():
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with a shell and a few programs of this machine."""
    archive = tmp_path_factory.mktemp("base") / "base.tar"
    with tarfile.open(archive, "w") as tar:
        paths = {path for name in PROGRAMS if (path := shutil.which(name, path="/usr/bin:/bin"))}
        needed = {library for path in paths for library in libraries(path)}
        for file in sorted(paths | needed):
            real = Path(file).resolve()
            entry = tar.gettarinfo(real, f"bin/{Path(file).name}" if file in paths else file)
            with real.open("rb") as stream:
                tar.addfile(entry, stream)
        for name, mode in (("tmp", 0o1777), ("etc", 0o755), ("root", 0o700), ("home/agent", 0o777)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(PASSWD)
        tar.addfile(entry, io.BytesIO(PASSWD.encode()))
    engine = find_engine()
    subprocess.run([engine, "import", str(archive), BASE], check=True, capture_output=True)
    yield BASE
    clean(tmp_path_factory.mktemp("home"))
    subprocess.run([engine, "rmi", "--force", BASE], check=False, capture_output=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


async def play(folder: Path, home: Path, command: str | None) -> RewardResult:
    places = open_places(home, settings(), PlaceOptions(), "container")
    task = read_task(folder)
    async with open_trial(task, places.of(task), home) as trial:
        while trial.stage is not None:
            await trial.start()
            if command is None:
                ended = await trial.solve()
                assert ended.exit_code == 0, ended.output
            else:
                sandbox = await trial.open_agent()
                await sandbox.run(command, timeout_s=60)
                await sandbox.close()
            await trial.score()
        return trial.reward()


def settings() -> SandboxSettings:
    return SandboxSettings(backend="docker", memory_mb=256)


def of_trials() -> list[str]:
    """Containers and images of trials."""
    engine = find_engine()
    return [*containers(engine), *(name for name in images(engine) if ":trial-" in name)]


async def test_a_task_runs_in_its_image(tmp_path: Path, home: Path, base: str) -> None:
    test = '[ "$(cat /etc/before)" = 41 ] && [ "$(cat /app/answer.txt)" = 42 ] && r=1 || r=0; echo $r'
    folder = write_task(
        tmp_path / "t", dockerfile=DOCKERFILE, test=f"{test} > /logs/verifier/reward.txt; pwd; id -u"
    )
    solved = await play(folder, home, None)
    assert (solved.value, solved.detail.split()) == (1, ["/app", "0"])
    assert (await play(folder, home, "true")).value == 0
    assert (await play(folder, home, "echo 42 > answer.txt; echo x > /etc/new")).value == 1
    assert (await play(folder, home, "echo 42 > answer.txt; echo 0 > /etc/before")).value == 0
    assert not of_trials(), "containers and images of a trial are removed at its end"


# Root can replace the image's own programs: a task that fears that has a separate verifier. No Python here.
ATTEMPTS = [name for name in CHEATS if name not in ("programs of its own", "the start of Python")]


@pytest.mark.parametrize("cheat", ATTEMPTS)
async def test_nobody_steals_a_reward_as_root(tmp_path: Path, home: Path, base: str, cheat: str) -> None:
    test = "ls -A /logs/verifier; ls -A /tests; echo 0 > /logs/verifier/reward.txt"
    reward = await play(write_task(tmp_path / "t", dockerfile=DOCKERFILE, test=test), home, CHEATS[cheat])
    assert (reward.value, reward.detail.split()) == (0, ["test.sh"])


async def test_users_and_a_separate_verifier(tmp_path: Path, home: Path, base: str) -> None:
    toml = (
        'artifacts = ["/app/answer.txt", "/home/agent/dir", "/app/missing"]\n[agent]\nuser = "agent"\n'
        '[verifier]\nenvironment_mode = "separate"\nuser = "agent"\n'
    )
    test = "whoami; cat /app/who /home/agent/dir/f; ls /home/agent; echo 1 > /logs/verifier/reward.txt"
    dockerfile = f"{DOCKERFILE}RUN chmod 777 /app\n"
    folder = write_task(tmp_path / "t", toml=toml, test=test, dockerfile=dockerfile)
    reward = await play(folder, home, "whoami > who; mkdir ~/dir; echo f > ~/dir/f; touch ~/left")
    assert reward.value == 1 and "left" not in reward.detail and "f" in reward.detail.split()
    assert reward.detail.split()[0] == "agent" and not of_trials()


async def test_artifacts_of_root_get_where_no_folder_is(tmp_path: Path, home: Path, base: str) -> None:
    toml = 'artifacts = ["/new/deep/answer.txt"]\n[verifier]\nenvironment_mode = "separate"\n'
    test = "cat /new/deep/answer.txt /logs/artifacts/log; echo 1 > /logs/verifier/reward.txt"
    folder = write_task(tmp_path / "t", toml=toml, test=test, dockerfile=DOCKERFILE)
    reward = await play(
        folder, home, "mkdir -p /new/deep; echo 42 > /new/deep/answer.txt; echo 7 > /logs/artifacts/log"
    )
    assert (reward.value, reward.detail.split()) == (1, ["42", "7"])
    assert not of_trials()


async def test_an_image_that_cannot_be_had_is_a_sentence(tmp_path: Path, home: Path, base: str) -> None:
    image = "localhost:1/no/such:image"
    pulled = write_task(tmp_path / "a", dockerfile=None, toml=f'[environment]\ndocker_image = "{image}"')
    with pytest.raises(TaskError, match=r"environment\.docker_image"):
        await play(pulled, home, "true")
    broken = write_task(tmp_path / "b", dockerfile=f"FROM {BASE}\nRUN echo because; false\n")
    with pytest.raises(TaskError, match="cannot be built"):
        await play(broken, home, "true")
    assert not of_trials()


async def test_a_folder_is_checked_in_the_place_that_each_task_needs(
    tmp_path: Path, home: Path, base: str
) -> None:
    write_task(tmp_path / "tasks/plain")
    write_task(tmp_path / "tasks/own", dockerfile=DOCKERFILE)
    write_task(tmp_path / "tasks/none", dockerfile=f"FROM {BASE}\nNONSENSE\n")
    places = open_places(home, settings(), PlaceOptions(), "auto")
    verdicts = await check_tasks(read_tasks(tmp_path / "tasks").tasks, places, home, solutions=True)
    by_name: dict[str, Verdict] = {verdict.task: verdict for verdict in verdicts}
    assert by_name["own"].place == "container" and by_name["own"].sound, by_name["own"]
    assert not by_name["none"].sound
    if unusable_reason("bubblewrap") is None:
        assert by_name["plain"].place == "bubblewrap" and by_name["plain"].sound


DEAD = "999999999:1"


def of_process(name: str, process: str) -> str:
    return name.replace(this_process().replace(":", "-"), process.replace(":", "-"))


def engine_call(*words: str) -> str:
    return subprocess.run([find_engine(), *words], check=True, capture_output=True, text=True).stdout


def test_what_a_killed_process_left_is_cleaned(home: Path, base: str) -> None:
    container, image = of_process(container_name(), DEAD), of_process(image_name(), DEAD)
    engine_call("create", "--name", container, base, "true")
    engine_call("commit", container, image)
    assert clean(home)["containers"] == 1 and not of_trials()


def test_what_belongs_to_others_is_left(home: Path, base: str) -> None:
    """Whose label says otherwise, who works on another machine with this engine, or who lives."""
    engine = find_engine()
    labelled = (
        f"research.hermes.task={DEAD}"  # an image's authors may set any, and what is made of it inherits
    )
    elsewhere = re.sub(r"[0-9a-f]{8}(?=-\w+$)", "01234567", of_process(container_name(), DEAD))
    names = ["hermes-test-other", elsewhere, container_name()]
    image = "localhost/hermes-test-other:1"
    try:
        for name in names:
            engine_call("create", "--name", name, "--label", labelled, base, "true")
        engine_call("commit", names[0], image)
        assert clean(home)["containers"] == 0
        for name in names:
            engine_call("inspect", "--type", "container", name)
        engine_call("image", "inspect", image)
    finally:
        subprocess.run([engine, "rm", "--force", *names], check=False, capture_output=True)
        subprocess.run([engine, "rmi", image], check=False, capture_output=True)


async def test_cleaning_leaves_an_image_that_is_in_use(tmp_path: Path, home: Path, base: str) -> None:
    places = open_places(home, settings(), PlaceOptions(), "container")
    task = read_task(write_task(tmp_path / "t", dockerfile=DOCKERFILE))
    other_home = tmp_path / "other"
    async with open_trial(task, places.of(task), home) as trial:
        assert clean(other_home)["images"] == 0, "before the first sandbox too"
        await trial.start()
        sandbox = await trial.open_agent()
        assert clean(home)["images"] == 0
        assert (await sandbox.run("cat /etc/before", timeout_s=60)).output.strip() == "41"
        await sandbox.close()
        assert clean(other_home)["images"] == 0
        assert (await trial.score()).value == 0
    assert clean(home)["images"] >= 1 and not images(find_engine())


async def test_an_image_with_another_name_loses_ours(tmp_path: Path, home: Path, base: str) -> None:
    places = open_places(home, settings(), PlaceOptions(), "container")
    task = read_task(write_task(tmp_path / "t", dockerfile=DOCKERFILE))
    own, engine = "localhost/hermes-test-own:1", find_engine()
    async with open_trial(task, places.of(task), home) as trial:
        await call_engine(engine, "tag", images(engine)[0], own)
        assert clean(home)["images"] == 1 and not images(engine)
        assert (await trial.solve()).exit_code == 0, "the trial goes on with it"
    try:
        assert engine_call("image", "inspect", own)
    finally:
        engine_call("rmi", own)


async def test_trials_go_on_while_another_process_cleans(tmp_path: Path, home: Path, base: str) -> None:
    """Without a pause: while trials build, run and are verified apart."""
    toml = 'artifacts = ["/app/answer.txt"]\n[verifier]\nenvironment_mode = "separate"\n'
    with cleaning_process("from hermes.envs.harbor.places import clean", home):
        for number in range(2):
            dockerfile = f"{DOCKERFILE}RUN echo {number} > /app/number\n"
            folder = write_task(tmp_path / f"t{number}", toml=toml, dockerfile=dockerfile)
            rewards = await asyncio.gather(*(play(folder, home, None) for _ in range(2)))
            assert [reward.value for reward in rewards] == [1, 1]


async def test_a_machine_that_is_too_small_is_named(tmp_path: Path, home: Path, base: str) -> None:
    folder = write_task(tmp_path / "t", dockerfile=DOCKERFILE, toml="[environment]\nstorage_mb = 99999999999")
    with pytest.raises((TaskError, SandboxError), match="storage_mb"):
        await play(folder, home, "true")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_forty_tasks_are_checked_in_containers_and_a_kill_leaves_nothing(
    tmp_path: Path, home: Path, base: str
) -> None:
    write_tasks(tmp_path / "tasks", 40, base)
    check_with_a_kill(home, tmp_path / "tasks", 40, "container")
    engine = find_engine()
    assert containers(engine) == [] and images(engine) == []
