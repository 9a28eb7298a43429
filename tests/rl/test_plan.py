"""Ports that are taken after they were promised, keys, and settings of a person's that are wrong."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hermes.errors import ConfigError
from hermes.rl import ports
from hermes.rl.plan import RunPlan, trainer_environ, with_ports, write_config
from hermes.rl.run import Run
from hermes.rl.settings import read_settings


def _run(home: Path, api_port: int, engine_url: str | None = None) -> Run:
    run = Run(home, "0123abcd")
    about = {"run_id": run.run_id, "engine_url": engine_url, "ports": {"api": api_port, "engine": 8001}}
    about |= {"cwd": str(home / "gone"), "max_hours": None, "model": "m", "device": "cpu"}
    write_config(run, with_ports({"env": {}, "openai": [{"model_name": "policy"}], "run": about}))
    run.log_path("api").parent.mkdir(parents=True)
    return run


def test_a_server_whose_port_was_taken_meanwhile_gets_another_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        run = _run(tmp_path, taken)
        plan = RunPlan(run)
        run.log_path("api").write_text("error: the disk is full\n")
        assert not plan.move("api"), "that is not about the port"
        run.log_path("api").write_text(f"error: cannot listen on 127.0.0.1 port {taken}: it is taken\n")
        assert plan.move("api")
        moved = run.config()
    port = moved["run"]["ports"]["api"]
    assert port not in (0, taken, 8001)
    assert moved["env"]["rollout_server_url"] == f"http://127.0.0.1:{port}"
    assert plan.cwd == run.folder, "where it was started is gone"


def test_a_port_that_is_promised_to_another_run_is_not_chosen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert ports.choose(free) == free
    assert ports.choose(free, {free}) not in (0, free)


def test_runs_on_a_shared_engine_have_names_of_their_own_and_keys_stay_off_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret")
    config = _run(tmp_path, 8000, "http://engine.example:8001").config()
    assert config["openai"][0]["model_name"] == "policy-0123abcd"
    assert config["openai"][0]["base_url"] == "http://engine.example:8001/v1"
    assert trainer_environ(config)["TINKER_API_KEY"] == "tml-secret"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modle: x", "modle"),
        ("max_steps: 0", "max_steps"),
        ("engine_url: nowhere", "engine_url"),
    ],
)
def test_a_wrong_setting_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "rl.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings(tmp_path)
    assert said in caught.value.message and "rl.yaml:1:1" in caught.value.message
