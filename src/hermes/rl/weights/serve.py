"""Using what a run has learned: an engine over its checkpoints, or its merged model in this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from hermes.errors import UsageError
from hermes.rl.run import RlRun
from hermes.rl.service import connect, policy_url
from hermes.rl.supervise import ports
from hermes.rl.supervise.part import HERMES, ask
from hermes.rl.weights.export import export_merged
from hermes.rl.weights.source import choose, run_source

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.models.base import ChatModel


def endpoint(run: RlRun) -> str:
    """Where the run's policy can be asked as the model `policy`, by as many as like."""
    url = None if run.status().state.ended else running_engine(run)
    if url is None:
        raise UsageError(
            f"nothing serves the policy of run {run.run_id}",
            f"hermes rl serve {run.run_id}, and then --base-url with the address it tells, --model policy",
        )
    return f"{url}/v1"


def running_engine(run: RlRun) -> str | None:
    """Where the run's newest weights can be sampled, while it is up."""
    url = policy_url(run.config()["run"])
    return url if ask(f"{url}/health") is not None else None


def serve_command(run: RlRun, port: int | None) -> list[str]:
    """`hermes engine serve` over the run's checkpoints; `policy` is the newest."""
    choose(run, None)
    about = run.config()["run"]
    chosen = port if port is not None else ports.choose(ports.ENGINE_PORT)
    arguments = ["engine", "serve", "--model", about["model"], "--device", about["device"]]
    return [*HERMES, *arguments, "--port", str(chosen), "--state-dir", str(run.folder / "engine")]


def serve_service(run: RlRun, port: int | None, announce: Callable[[str], None]) -> None:
    """The newest weights of a run whose weights lie with a service, until a signal ends it."""
    from hermes.training.service.openai_proxy import offered, tokenizer_of
    from hermes.training.service.token_meter import TokenMeter

    about, path = run.config()["run"], choose(run, None)["path"]
    chosen = port if port is not None else ports.choose(ports.ENGINE_PORT)
    tokenizer = tokenizer_of(about["model"], run.home)
    with (
        closing(TokenMeter(run.folder)) as meter,
        offered(connect(run.home, about["service"]), about["model"], tokenizer, chosen, meter) as face,
    ):
        face.show(path)
        announce(f"serving {path} at {face.url}/v1, model policy")
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *about: ended.set())
        ended.wait()


def open_run_model(config: Config, run: RlRun, progress: Callable[[str], None] | None = None) -> ChatModel:
    """The model `run:ID`: its engine's while that is up, otherwise its newest weights in this process."""
    url = running_engine(run) if not run.status().state.ended else None
    if url is not None:
        from hermes.models.open import open_model
        from hermes.rl.config.resolve import POLICY

        return open_model(config, POLICY, f"{url}/v1")
    from hermes.models.local.chat import LocalChat

    if progress is not None:
        progress(f"merging the newest weights of run {run.run_id}")
    return LocalChat.open(str(export_merged(run_source(run))), config.home, progress)
