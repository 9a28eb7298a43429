"""Serves the weights of a run: an engine over its checkpoints, or its merged model in this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from hermes.engine.server.options import EngineServeOptions
from hermes.errors import UsageError
from hermes.rl.process import HERMES
from hermes.rl.run import RlRun
from hermes.rl.service import connect
from hermes.rl.supervise import ports
from hermes.rl.supervise.engine_process import engine_options
from hermes.rl.weights.export import export_merged
from hermes.rl.weights.source import choose_checkpoint, run_source
from hermes.serving.fetch import fetch_json

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.models.base import ChatModel


def endpoint(run: RlRun) -> str:
    """The OpenAI endpoint of a running run, where its policy is the model `policy`."""
    url = None if run.status().state.ended else running_engine(run)
    if url is None:
        raise UsageError(
            f"nothing serves the policy of run {run.run_id}",
            f"hermes policy serve run:{run.run_id}, then --base-url ADDRESS --model policy",
        )
    return f"{url}/v1"


def running_engine(run: RlRun) -> str | None:
    """The address at which the run's newest weights are sampled; None if it does not respond."""
    url = run.config().run.policy_url
    return url if fetch_json(f"{url}/health") is not None else None


def serve_command(run: RlRun, port: int | None) -> tuple[str, ...]:
    """`hermes engine serve` over the run's checkpoints, on a base like the run's; `policy` is the newest."""
    choose_checkpoint(run, None)
    config = run.config()
    chosen = port if port is not None else ports.choose(ports.ENGINE_PORT)
    options = EngineServeOptions(
        model=config.run.model,
        device=config.run.device,
        quantize=engine_options(config.tinker).quantize,
        port=chosen,
        state_dir=run.folder / "engine",
    )
    return (*HERMES, *options.arguments())


def serve_service(run: RlRun, port: int | None, announce: Callable[[str], None]) -> None:
    """Serves the newest weights of a run that are at a service, until SIGINT or SIGTERM."""
    from hermes.training.service.openai_proxy import serve_proxy, tokenizer_of
    from hermes.training.service.token_meter import TokenMeter

    settings, path = run.config().run, choose_checkpoint(run, None)["path"]
    assert settings.service is not None, "otherwise the run has an engine of its own"
    chosen = port if port is not None else ports.choose(ports.ENGINE_PORT)
    tokenizer = tokenizer_of(settings.model, run.home)
    with (
        closing(TokenMeter(run.folder)) as meter,
        serve_proxy(connect(run.home, settings.service), settings.model, tokenizer, chosen, meter) as proxy,
    ):
        proxy.set_policy(path)
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *frame: ended.set())
        announce(f"serving {path} at {proxy.url}/v1, model policy")
        ended.wait()


def open_run_model(config: Config, run: RlRun, progress: Callable[[str], None] | None = None) -> ChatModel:
    """The model `run:ID`: at its engine while that runs, otherwise its newest weights in this process."""
    url = running_engine(run) if not run.status().state.ended else None
    if url is not None:
        from hermes.models.open import open_model
        from hermes.rl.config.resolve import POLICY

        return open_model(config, POLICY, f"{url}/v1")
    from hermes.models.local.chat import LocalChat

    if progress is not None:
        progress(f"merging the newest weights of run {run.run_id}")
    return LocalChat.open(str(export_merged(run_source(run))), config.home, progress)
