"""Serves one policy: in this process's place, or beside it for as long as a block runs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hermes.config.environment import without_stored
from hermes.engine.server.options import EngineServeOptions
from hermes.errors import UsageError
from hermes.rl.process import HERMES
from hermes.rl.service import connect
from hermes.rl.supervise import ports
from hermes.rl.supervise.engine_process import engine_process
from hermes.rl.weights.open import NamedPolicy, Progress, adapter_folder

if TYPE_CHECKING:
    from hermes.config.load import Config


@contextmanager
def served(config: Config, policy: NamedPolicy, progress: Progress) -> Iterator[str]:
    """The OpenAI endpoint at which the model `policy.name` answers until the block ends."""
    if policy.service_run is not None:
        with _proxy(policy, 0) as url:
            yield f"{url}/v1"
        return
    options = _options(policy, ports.choose(0, reserved=(0,)))
    progress(f"starting an engine that serves {policy.name}")
    with (
        TemporaryDirectory(prefix="hermes-policy-") as folder,
        engine_process(options, Path(folder) / "engine.log", {"HERMES_HOME": str(config.home)}) as url,
    ):
        yield f"{url}/v1"


def serve_policy(
    config: Config, policy: NamedPolicy, port: int | None, announce: Callable[[str], None]
) -> None:
    """Serves until SIGINT or SIGTERM: weights at a service from here, others by an engine, which this process
    becomes. Returns at once if the policy's run serves it already."""
    if policy.provider:
        raise UsageError(
            f"the policy is texts around {policy.base_model}, which its provider serves: it has no weights",
            "hermes --model policy, hermes batch and hermes bench use it",
        )
    if policy.texts:
        announce(f"the texts {', '.join(policy.texts)} are not served: hermes --model policy uses them")
    if policy.url is not None:
        announce(f"the run's own engine serves it: {policy.url}, model policy")
        return
    chosen = port if port is not None else ports.choose(ports.ENGINE_PORT)
    if policy.service_run is not None:
        ended = threading.Event()
        with _proxy(policy, chosen) as url:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *frame: ended.set())
            announce(f"serving {policy.name} at {url}/v1, model {policy.name}")
            ended.wait()
        return
    # With the checkpoints of this home: training can go on from the policy at the engine that serves it.
    options = _options(policy, chosen).model_copy(update={"state_dir": config.home / "engine"})
    command = (*HERMES, *options.arguments())
    os.execve(command[0], command, {**without_stored(os.environ), "HERMES_HOME": str(config.home)})


@contextmanager
def _proxy(policy: NamedPolicy, port: int) -> Iterator[str]:
    """The address of a proxy that samples weights at the service of their run."""
    from hermes.training.service.openai_proxy import serve_proxy, tokenizer_of
    from hermes.training.service.token_meter import TokenMeter

    run, source = policy.service_run, policy.source
    assert run is not None and source is not None
    settings = run.config().run
    assert settings.service is not None
    tokenizer = tokenizer_of(settings.model, run.home)
    with (
        closing(TokenMeter(run.folder)) as meter,
        serve_proxy(connect(run.home, settings.service), settings.model, tokenizer, port, meter) as proxy,
    ):
        proxy.set_policy(source.sampler or source.path, policy.name)
        yield proxy.url


def _options(policy: NamedPolicy, port: int) -> EngineServeOptions:
    adapters = () if policy.source is None else (f"{policy.name}={adapter_folder(policy.source)}",)
    chosen = policy.engine.model_dump(exclude_defaults=True)
    return EngineServeOptions(**chosen, port=port, policies=adapters)
