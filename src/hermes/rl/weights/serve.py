"""Serves one policy: in this process's place, or beside it for as long as a block runs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hermes.config.environment import without_stored
from hermes.config.providers import CUSTOM, resolve_model
from hermes.engine.server.options import EngineServeOptions
from hermes.gateway.presets import LOCAL_KEY
from hermes.gateway.service import forward
from hermes.gateway.upstream import Upstream, spoken_at
from hermes.gateway.wire.texts import is_served
from hermes.rl.process import HERMES
from hermes.rl.service import connect
from hermes.rl.supervise import ports
from hermes.rl.supervise.engine_process import engine_process
from hermes.rl.weights.open import NamedPolicy, Progress, adapter_folder
from hermes.training.policy_registry import NAME

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


@contextmanager
def policy_upstream(config: Config, policy: NamedPolicy, progress: Progress) -> Iterator[Upstream]:
    """Where the policy answers for the block (its provider, its run, an engine), and its texts."""
    texts = {name: text for name, text in policy.texts.items() if is_served(name)}
    if unserved := [name for name in policy.texts if name not in texts]:
        progress(f"not in a request: {', '.join(unserved)}; hermes --model policy uses them too")
    if policy.provider:
        target = resolve_model(config.settings, config.environ, policy.base_model)
        url = target.base_url
        yield Upstream(target.provider, url, spoken_at(url), target.api_key, target.model, texts)
        return
    model = policy.name if policy.url is None else NAME
    with nullcontext(policy.url) if policy.url is not None else served(config, policy, progress) as url:
        yield Upstream(CUSTOM, url, spoken_at(url), LOCAL_KEY, model, texts)


def serve_policy(
    config: Config,
    policy: NamedPolicy,
    port: int | None,
    announce: Callable[[str], None],
    progress: Progress,
) -> None:
    """Serves until SIGINT or SIGTERM: texts, and weights at a service, from here; other weights by an engine,
    which this process becomes. Returns at once if the policy's run serves it already."""
    if policy.texts or policy.provider:
        _serve_texts(config, policy, port, announce, progress)
        return
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


def _serve_texts(
    config: Config,
    policy: NamedPolicy,
    port: int | None,
    announce: Callable[[str], None],
    progress: Progress,
) -> None:
    """The policy behind a gateway that puts its texts around each request."""
    with policy_upstream(config, policy, progress) as upstream:
        around = f" with {', '.join(upstream.texts)}" if upstream.texts else ""

        def serving(url: str) -> None:
            announce(f"serving {policy.name}{around} at {url}/v1, model {upstream.model}")

        forward(upstream, port if port is not None else ports.choose(ports.ENGINE_PORT), serving)


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
