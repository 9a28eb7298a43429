"""Harbor task folders: each field is read, or the task is refused by the name of the field."""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path
from typing import Any

import pytest

from hermes.envs.harbor.dataset import read_tasks
from hermes.envs.harbor.dockerfile import Host, read_dockerfile, read_recipe
from hermes.envs.harbor.reward import combine, reaches, read_reward
from hermes.envs.harbor.schema import TaskError, read_task_file
from hermes.envs.harbor.task import read_task
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.errors import UsageError
from tests.envs.harbor.folders import write_task

FULL = """
schema_version = "1.4"
source = "somewhere"
artifacts = ["/app/out.txt", {source = "/app/a", destination = "/app/b"}]
[task]
name = "org/sums"
version = "2"
description = "Adds."
authors = [{name = "A", email = "a@example.org"}]
keywords = ["sums"]
[metadata]
difficulty = "easy"
anything = {goes = [1, 2]}
[environment]
build_timeout_sec = 30
cpus = 2
memory_mb = 1024
storage_mb = 2048
gpus = 0
os = "linux"
workdir = "/srv/work"
network_mode = "no-network"
env = {TOKEN = "${TOKEN:-none}", PLAIN = "1"}
[environment.healthcheck]
command = "true"
interval_sec = 0.1
timeout_sec = 3
start_period_sec = 1
retries = 2
[agent]
timeout_sec = 10.5
user = "root"
[verifier]
timeout_sec = 20
env = {KEY = "${KEY}"}
environment_mode = "separate"
[[verifier.collect]]
command = "ls"
timeout_sec = 5
[solution]
env = {HINT = "1"}
"""


def test_every_field_of_the_newest_schema_is_read(tmp_path: Path) -> None:
    task = read_task(write_task(tmp_path / "t", toml=FULL), {"KEY": "secret"})
    machine, verifier = task.file.machine, task.file.verifier
    assert (task.key, machine.cpus, machine.memory_mb, machine.storage_mb) == ("org/sums", 2, 1024, 2048)
    assert (machine.workdir, machine.network, machine.build_timeout_s) == ("/srv/work", "no-network", 30)
    assert machine.variables == {"TOKEN": "none", "PLAIN": "1"}
    assert machine.healthcheck is not None and machine.healthcheck.retries == 2
    assert (task.file.agent.timeout_s, task.file.agent.user) == (10.5, "root")
    assert (verifier.timeout_s, verifier.separate, verifier.variables) == (20, True, {"KEY": "secret"})
    assert [entry.command for entry in verifier.collect] == ["ls"]
    assert [(artifact.source, artifact.destination) for artifact in task.file.artifacts] == [
        ("/app/out.txt", "/app/out.txt"),
        ("/app/a", "/app/b"),
    ]
    assert task.file.metadata["anything"] == {"goes": [1, 2]}
    assert task.file.solution_variables == {"HINT": "1"}


def test_older_spellings_are_read(tmp_path: Path) -> None:
    toml = 'version = "1.0"\n[environment]\nmemory = "4G"\nstorage = "10G"\nallow_internet = false\n'
    machine = read_task(write_task(tmp_path / "t", toml=toml)).file.machine
    assert (machine.memory_mb, machine.storage_mb, machine.network) == (4096, 10240, "no-network")


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("surprise = 1", "surprise"),
        ("[environment]\nram = 3", "environment.ram"),
        ("[environment]\ngpus = 1", "environment.gpus"),
        ('[environment]\nos = "windows"', "environment.os"),
        ('[environment]\nskills_dir = "/skills"', "environment.skills_dir"),
        ('[[environment.mcp_servers]]\nname = "x"', "environment.mcp_servers"),
        ("[environment]\ncpus = 0", "environment.cpus"),
        ('[environment]\nmemory = "much"', "environment.memory"),
        ('[environment]\nnetwork_mode = "maybe"', "environment.network_mode"),
        ('[environment]\nworkdir = "here"', "environment.workdir"),
        ('[environment]\nenv = {A = "${NOT_SET_ANYWHERE}"}', "environment.env"),
        ("[agent]\ntimeout_sec = -1", "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = true", "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = nan", "agent.timeout_sec"),
        ("[agent]\nretries = 1", "agent.retries"),
        ('[[verifier.collect]]\nservice = "db"\ncommand = "x"', "verifier.collect[0].service"),
        ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1', "environment_mode"),
        ('artifacts = [{source = "/a", exclude = ["b"]}]', "artifacts"),
        ('artifacts = ["../a"]', "artifacts"),
        ('schema_version = "9.9"', "schema_version"),
        ('multi_step_reward_strategy = "best"', "multi_step_reward_strategy"),
        ('[[steps]]\nname = "../x"', "steps[0].name"),
        ("[environment.healthcheck]\nretries = 1", "environment.healthcheck.command"),
        ("agent = 3", "agent"),
        ("= broken", "task.toml"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path: Path, toml: str, named: str) -> None:
    with pytest.raises(TaskError) as raised:
        read_task(write_task(tmp_path / "t", toml=toml))
    assert named in raised.value.message


def test_an_unknown_field_anywhere_is_refused() -> None:
    """Any field that no author has documented, in any table, drawn at random."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    tables = ["", "environment", "environment.healthcheck", "agent", "verifier", "solution"]
    for _ in range(200):
        field = "".join(draw.choices("abcdefghijklmnop_", k=draw.randint(3, 12))) + "_zz"
        path = draw.choice(tables)
        values: dict[str, Any] = {"environment": {"healthcheck": {"command": "true"}}}
        table = values
        for part in filter(None, path.split(".")):
            table = table.setdefault(part, {})
        table[field] = draw.choice([1, "x", True, [1], {"a": 1}])
        with pytest.raises(TaskError) as raised:
            read_task_file(values)
        assert f"{path}.{field}".lstrip(".") in raised.value.message


def test_values_of_any_type_end_in_a_sentence() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    fields = {
        "": ["version", "source", "artifacts", "metadata", "steps", "multi_step_reward_strategy", "task"],
        "environment": ["docker_image", "cpus", "memory_mb", "env", "workdir", "network_mode", "healthcheck"],
        "agent": ["timeout_sec", "user", "network_mode"],
        "verifier": ["timeout_sec", "env", "environment", "collect", "environment_mode"],
        "solution": ["env"],
    }
    values = [1, -1, 0.5, True, "x", "", [], [1], [[]], {}, {"a": 1}, {"command": 2}, float("inf"), "9" * 99]
    for _ in range(2000):
        table = draw.choice(list(fields))
        entry = {draw.choice(fields[table]): draw.choice(values)}
        try:
            read_task_file({table: entry} if table else entry)
        except TaskError as error:
            assert error.message.endswith(".") and len(error.message) < 300


def test_a_folder_without_its_parts_is_refused(tmp_path: Path) -> None:
    assert "instruction.md" in refusal(write_task(tmp_path / "a", instruction=" \n"))
    assert "environment/Dockerfile" in refusal(write_task(tmp_path / "b", dockerfile=None))
    compose = {"environment/docker-compose.yaml": "services: {}"}
    assert "docker-compose.yaml" in refusal(write_task(tmp_path / "c", files=compose))
    without_tests = write_task(tmp_path / "d")
    (without_tests / "tests/test.sh").unlink()
    assert "tests/test.sh" in refusal(without_tests)
    leads_out = write_task(tmp_path / "e")
    (leads_out / "environment/data").symlink_to("/etc/passwd")
    assert "environment/data" in refusal(leads_out)
    pipe = write_task(tmp_path / "f")
    os.mkfifo(pipe / "tests/pipe")
    assert "tests/pipe" in refusal(pipe)
    assert "task.toml" in refusal(tmp_path)


def refusal(folder: Path) -> str:
    with pytest.raises(TaskError) as raised:
        read_task(folder)
    return raised.value.message


def test_steps_have_their_own_instructions_and_tests(tmp_path: Path) -> None:
    toml = (
        '[[steps]]\nname = "first"\nmin_reward = 0.5\n[[steps]]\nname = "second"\n'
        "min_reward = {tests = 1}\n[steps.agent]\ntimeout_sec = 5\n"
    )
    folder = write_task(tmp_path / "t", toml=toml)
    for name in ("first", "second"):
        step = folder / "steps" / name
        step.mkdir(parents=True)
        (step / "instruction.md").write_text(f"Do the {name}.")
    (folder / "steps/second/tests").mkdir()
    (folder / "steps/second/tests/test.sh").write_text("true")
    assert "instruction.md" in refusal(folder)  # one of the whole task would never be shown
    (folder / "instruction.md").unlink()
    first, second = read_task(folder).stages
    assert (first.instruction, second.instruction) == ("Do the first.", "Do the second.")
    assert (first.tests, second.tests) == (
        (folder / "tests",),
        (folder / "tests", folder / "steps/second/tests"),
    )
    assert first.part is not None and first.part.min_reward == {"reward": 0.5}
    assert second.part is not None and second.part.agent.timeout_s == 5


def test_bad_tasks_of_a_folder_are_a_line_and_the_others_go_on(tmp_path: Path) -> None:
    write_task(tmp_path / "good")
    write_task(tmp_path / "deep/er/good2")
    write_task(tmp_path / "gpu", toml="[environment]\ngpus = 1")
    write_task(tmp_path / "twin", toml='[task]\nname = "good"')
    (tmp_path / "no_toml").mkdir()
    (tmp_path / "no_toml/instruction.md").write_text("Do it.")
    folder = read_tasks(tmp_path)
    assert {task.key for task in folder.tasks} == {"good", "good2"}
    reasons = {bad.name: bad.reason for bad in folder.bad}
    assert set(reasons) == {"gpu", "twin", "no_toml"}
    assert "environment.gpus" in reasons["gpu"] and "task.toml" in reasons["no_toml"]
    assert [task.key for task in read_tasks(tmp_path / "good").tasks] == ["good"]
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(UsageError):
            read_tasks(nothing)


def test_a_digest_is_of_the_content(tmp_path: Path) -> None:
    first, second = read_task(write_task(tmp_path / "a")), read_task(write_task(tmp_path / "b"))
    assert first.digest == second.digest
    (tmp_path / "b/tests/more.py").write_text("x")
    changed = read_task(tmp_path / "b")
    assert changed.digest != first.digest and changed.environment_digest == first.environment_digest
    (tmp_path / "b/environment/data").write_text("x")
    assert read_task(tmp_path / "b").environment_digest != first.environment_digest


def test_rewards_are_numbers_or_errors() -> None:
    assert read_reward(None, " 0.5\n").value == 0.5
    assert read_reward("1", "0").value == 1
    assert read_reward('{"reward": 0.25, "style": 1}', None).parts == {"reward": 0.25, "style": 1}
    assert read_reward('{"a": 0, "b": 1}', None).value == 0.5
    assert read_reward('{"a": 1e308, "b": 1e308}', None).value == pytest.approx(1e308)
    for json_text, text in [
        (None, None),
        (None, ""),
        (None, "nan"),
        (None, "inf"),
        (None, "passed"),
        ("{}", None),
        ("[1]", None),
        ("true", None),
        ('{"reward": "1"}', None),
        ("{", "1"),
        ("[" * 100_000, "1"),
        ('{"reward": 1' + "0" * 400 + "}", None),
        ('{"reward": 1e999}', None),
    ]:
        with pytest.raises(GraderError):
            read_reward(json_text, text)


BOMBS = {
    "doubles": "ENV A=xxxxxxxxxx\n" + "ENV A=$A$A\n" * 60,
    "arguments": "ARG A=xxxxxxxxxx\n" + "ARG A=$A$A\n" * 60,
    "nested": "RUN " + "[" * 100_000,
    "nested copy": "COPY " + "[" * 100_000,
    "many": "ENV A=1\nRUN a\n" * 10_000,
    "long": "# comment\n" * 100_000,
    "folders": "WORKDIR " + "a/" * 50_000 + "\n" + "WORKDIR a\n" * 2_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_dockerfile_that_grows_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(f"FROM debian:bookworm\n{BOMBS[name]}")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (300 << 20), limits[1]))
    try:
        with pytest.raises(TaskError, match=r"environment/Dockerfile"):
            read_recipe(read_dockerfile(path), Host("/bin", ("debian:*",), frozenset))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize(
    ("common", "own", "separate", "image"),
    [
        ("", "", False, None),
        ('environment_mode = "separate"', "", True, None),
        ('environment_mode = "separate"', 'environment_mode = "shared"', False, None),
        ('environment = {docker_image = "a"}', "", True, "a"),
        ('environment = {docker_image = "a"}', 'environment_mode = "shared"', False, None),
        ('environment = {docker_image = "a"}', 'environment = {docker_image = "b"}', True, "b"),
        ("", 'environment_mode = "separate"', True, None),
        ('environment_mode = "shared"', 'environment = {docker_image = "b"}', True, "b"),
    ],
)
def test_a_step_is_verified_where_it_says_or_else_where_the_task_says(
    tmp_path: Path, common: str, own: str, separate: bool, image: str | None
) -> None:
    toml = f'[verifier]\n{common}\n[[steps]]\nname = "one"\n[steps.verifier]\n{own}\n'
    folder = write_task(tmp_path / "t", toml=toml)
    (folder / "steps/one").mkdir(parents=True)
    (folder / "instruction.md").rename(folder / "steps/one/instruction.md")
    task = read_task(folder)
    part = task.verifier_of(task.stages[0])
    assert bool(part.separate) is separate
    assert (part.machine.docker_image if part.machine else None) == image


def test_steps_are_combined_and_missing_ones_count_nothing() -> None:
    one, half = RewardResult(1.0, {"tests": 0.5}), RewardResult(0.5)
    assert combine([one, half], 2, "mean").value == 0.75
    assert combine([one, half], 2, "final").value == 0.5
    assert combine([one], 3, "final").value == 0
    assert reaches(one, {"reward": 1, "tests": 0.5}) and not reaches(one, {"tests": 0.6})
    with pytest.raises(GraderError):
        reaches(one, {"speed": 1})
