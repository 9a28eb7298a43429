"""One engine and one trajectory API for the tests of a worker; an environment and trainers for each test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from metric_table import undescribed

from hermes.training.checkpoints import RetentionPolicy
from hermes.training.monitor.sinks import JsonLines, Sinks
from hermes.training.service.client import LoraSpec, connection
from hermes.training.session import TrainingRunSpec
from tests.engine.http.engine_process import KEY, Server, launch, make_tiny
from tests.training.world import Environment, Process, ask, start_api

MakeRun = Callable[..., TrainingRunSpec]
StartTrainer = Callable[..., Process]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def engine(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = launch(tiny, tmp_path_factory.mktemp("engine"), "--max-adapters", "64")
    yield server
    server.kill()


@pytest.fixture(scope="session")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process, url = start_api(tmp_path_factory.mktemp("api"))
    yield url
    process.kill()


@pytest.fixture
def api(shared_api: str) -> str:
    """An API as it is when it has just started."""
    ask(shared_api, "GET", "/reset_data", text=True)
    return shared_api


@pytest.fixture
def environment(engine: Server, api: str, tiny: Path) -> Iterator[Environment]:
    made = Environment(engine.url, api)
    yield made
    made.close()


@pytest.fixture
def make_run(engine: Server, tiny: Path, tmp_path: Path) -> Iterator[MakeRun]:
    """Runs with the service that TINKER_BASE_URL names: the engine, unless a test has another `url`."""

    def make(name: str = "run", url: str | None = None, every: int = 25, last: int = 3) -> TrainingRunSpec:
        return TrainingRunSpec(
            name,
            tmp_path / "runs" / name,
            connection(None, {"TINKER_BASE_URL": url or engine.url, "TINKER_API_KEY": KEY}),
            LoraSpec(str(tiny), rank=8, seed=3),
            RetentionPolicy(every, last),
        )

    yield make
    check_metrics_are_described(tmp_path)


def check_metrics_are_described(folder: Path) -> None:
    """Every metric that the runs of a test wrote has a meaning in the table of metrics."""
    lines = [line for path in folder.rglob("metrics.jsonl") for line in path.read_text().splitlines()]
    names = {name for line in lines if line.endswith("}") for name in json.loads(line)}
    assert undescribed(names - {"step", "time_s"}) == set()


@pytest.fixture
def sinks_of() -> Callable[[TrainingRunSpec], Sinks]:
    return lambda run: Sinks([JsonLines(run.folder)])


@pytest.fixture
def start(tmp_path: Path, engine: Server, tiny: Path) -> Iterator[StartTrainer]:
    """Starts `hermes train` with TINKER_BASE_URL at the engine; each is gone at the end of the test."""
    started: list[Process] = []

    def one(kind: str, *arguments: str, **variables: str) -> Process:
        url = variables.pop("url", engine.url)
        given = ("train", kind, *arguments, "--base-model", str(tiny), "--rank", "8")
        service = {"TINKER_BASE_URL": url, "TINKER_API_KEY": KEY}
        started.append(Process(tmp_path / "home", *given, env={**service, **variables}))
        return started[-1]

    yield one
    for process in started:
        process.kill()
    check_metrics_are_described(tmp_path)
