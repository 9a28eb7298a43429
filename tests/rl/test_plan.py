"""Ports that are taken after they were promised, keys, and settings of a person's that are wrong."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from hermes.config.load import load
from hermes.errors import ConfigError
from hermes.rl.config.resolve import resolve, select
from hermes.rl.run import RlRun
from hermes.rl.service import service_of
from hermes.rl.supervise import ports
from hermes.rl.supervise.plan import RunPlan
from tests.rl.plans import planned_run
from tests.rl.world import ENVIRONMENTS


def test_a_server_whose_port_was_taken_meanwhile_gets_another_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        run = planned_run(tmp_path, taken)
        plan = RunPlan(run)
        run.log_path("api").write_text("error: the disk is full\n")
        assert not plan.reassign_port("api"), "that is not about the port"
        run.log_path("api").write_text(f"error: cannot listen on 127.0.0.1 port {taken}: it is taken\n")
        assert plan.reassign_port("api")
        moved = run.config()
    port = moved.run.ports["api"]
    assert port not in (0, taken, 8001)
    assert moved.env.rollout_server_url == f"http://127.0.0.1:{port}"
    assert plan.cwd == run.folder, "where it was started is gone"


def test_a_port_that_is_promised_to_another_run_is_not_chosen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert ports.choose(free) == free
    assert ports.choose(free, {free}) not in (0, free)


def test_with_a_service_elsewhere_the_environment_samples_from_the_trainer(tmp_path: Path) -> None:
    config = planned_run(tmp_path, 8000, "http://engine.example:8001").config()
    assert config.run.engine_url == "http://engine.example:8001"
    assert config.openai[0].model_dump() == {
        "model_name": "policy",
        "base_url": "http://127.0.0.1:8001/v1",
    }


def test_where_a_run_trains_is_a_setting_then_a_variable_and_else_an_engine_of_its_own(
    tmp_path: Path,
) -> None:
    def service(flags: dict[str, str], **environ: str) -> str | None:
        config = load(dict(flags), {"HERMES_HOME": str(tmp_path), **environ})
        return service_of(config.settings.rl, config.environ)

    assert service({}) is None
    assert service({}, TINKER_BASE_URL="http://10.0.0.1:8001") == "http://10.0.0.1:8001"
    assert service({"rl.service": "managed"}, TINKER_BASE_URL="http://10.0.0.1:8001") == "managed"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rl: {modle: x}", "rl.modle"),
        ("rl: {max_steps: 0}", "rl.max_steps"),
        ("rl: {service: nowhere}", "rl.service"),
    ],
)
def test_a_wrong_setting_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(environ={"HERMES_HOME": str(tmp_path)})
    assert said in caught.value.message and "config.yaml:1:" in caught.value.message


def test_what_hermes_train_takes_a_run_takes_too(tmp_path: Path) -> None:
    """Schedule, epochs, bounds, cap, teacher, early stop; and what its engine takes."""
    config = load({}, {"HERMES_HOME": str(tmp_path)})
    selection = select(config, str(ENVIRONMENTS / "letters.py"))
    edits = {
        "tinker.schedule": "cosine",
        "tinker.warmup_steps": 3,
        "tinker.epochs": 2,
        "tinker.loss": "ppo",
        "tinker.clip": [0.8, 1.28],
        "tinker.correction_cap": 1.5,
        "tinker.eval_patience": 4,
        "tinker.teacher_url": "http://127.0.0.1:9/generate",
        "tinker.distill": 0.5,
        "tinker.engine_dtype": "bfloat16",
        "tinker.engine_memory_gib": 3.5,
    }
    resolved = resolve(config, replace(selection, edits=edits))
    run = RlRun(tmp_path, "0123abcd")
    run.folder.mkdir(parents=True)
    section = {
        **{"run_id": run.run_id, "environment": "letters", "environment_file": "x.py", "service": None},
        **{"model": resolved.model, "device": "cpu", "ports": {"api": 1, "engine": 2}, "evaluates": True},
    }
    resolved.run_config(section).write(run.folder)
    commands = {spec.name: spec.command for spec in RunPlan(run).processes()}
    trainer = " ".join(commands["trainer"])
    for words in (
        *("--schedule=cosine", "--warmup-steps=3", "--epochs=2", "--loss=ppo", "--clip 0.8 1.28"),
        *("--correction-cap=1.5", "--patience=4", "--teacher-url=http://127.0.0.1:9/generate"),
        *("--distill=0.5", "--eval-environment=x.py", "--eval-every=25"),
    ):
        assert words in trainer
    assert "--dtype=bfloat16" in " ".join(commands["engine"])
    assert "--env.sampling_seed 0" in " ".join(commands["env"])
    from hermes.cli.train.command import train

    options = {name for parameter in train.commands["grpo"].params for name in parameter.opts}
    assert {word.partition("=")[0] for word in commands["trainer"] if word.startswith("--")} <= options
