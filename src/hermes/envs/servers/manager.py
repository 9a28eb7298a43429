"""Balances an environment's requests over its servers: each goes to the healthy one with most free slots.

Training and evaluation have separate slots on every server. `split` selects them; left out, the phase that
the environment is in does.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

from hermes.config.settings import LOCAL
from hermes.envs.failures import EnvironmentRunError
from hermes.envs.servers.base import APIServer, Sampled
from hermes.envs.servers.config import APIServerConfig, ReasoningConfig, ServerBaseline
from hermes.envs.servers.engines import SERVER_TYPES, join_choices
from hermes.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion
    from openai.types.completion import Completion

logger = logging.getLogger(__name__)
_PROBE_EVERY_S = 1.0
MANAGED_SERVERS = "hermes.managed_servers"
"""Entry point group."""


class ManagedServerFactory(Protocol):
    """Opens a managed server over one of the environment's servers."""

    def __call__(
        self, server: Any, *, tokenizer: Any, tool_parser: str | None, preserve_think_blocks: bool
    ) -> Any: ...


@cache
def _managed_server_factory() -> ManagedServerFactory:
    """The plug-in that opens managed servers: they are Atropos's, in a layer above this one."""
    for entry in entry_points(group=MANAGED_SERVERS):
        factory: ManagedServerFactory = entry.load()
        return factory
    raise UsageError(
        f"no package provides managed_server(): the entry point group '{MANAGED_SERVERS}' is empty.",
        "Install Hermes again: pip install -e .",
    )


class ServerManager:
    def __init__(
        self,
        configs: ServerBaseline | list[APIServerConfig],
        server_class: type[APIServer] = APIServer,
        slurm: bool = False,
        testing: bool = False,
        max_n_completions: int = 8,
        reasoning_config: ReasoningConfig | None = None,
        proxy_url: str | None = None,
        use_proxy: bool = False,
        tool_parser: str | None = None,
    ) -> None:
        self.max_n_completions = max_n_completions
        self.reasoning_config = reasoning_config
        self.tool_parser = tool_parser
        self.proxy_url = proxy_url or os.environ.get("ATROPOS_PROXY_URL")
        if use_proxy or self.proxy_url:
            raise ConfigError(
                "a managed-server proxy is not supported.",
                "Leave proxy_url and ATROPOS_PROXY_URL unset; managed_server() works without one.",
            )
        self.servers: list[Any] = (
            []
            if testing
            else [
                _class_for(server_class, config)(config, reasoning_config=reasoning_config)
                for config in server_configs(configs, slurm)
            ]
        )
        self._last_probe_s = 0.0

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        parts = await asyncio.gather(
            *(self._pick(part).chat_completion(**part) for part in self._parts(kwargs))
        )
        return _joined(parts)  # type: ignore[no-any-return]

    async def completion(self, **kwargs: Any) -> Completion:
        parts = await asyncio.gather(*(self._pick(part).completion(**part) for part in self._parts(kwargs)))
        return _joined(parts)  # type: ignore[no-any-return]

    async def tokens_and_logprobs_completion(self, **kwargs: Any) -> Sampled:
        """Prompt ids; then, one entry per completion: its ids, logprobs and finish reason."""
        parts = await asyncio.gather(
            *(self._pick(part).tokens_and_logprobs_completion(**part) for part in self._parts(kwargs))
        )
        ids, logprobs, reasons = ([entry for part in parts for entry in part[field]] for field in (1, 2, 3))
        return parts[0][0], ids, logprobs, reasons

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        logprobs: dict[str, Any] = await self._pick(kwargs).get_logprobs(**kwargs)
        return logprobs

    async def update_weight(self, weight: float) -> None:
        for server in self.servers:
            await server.update_weight(weight)

    @asynccontextmanager
    async def managed_server(
        self, tokenizer: Any = None, base_url: str | None = None, preserve_think_blocks: bool = False
    ) -> AsyncIterator[Any]:
        """A server that records exact tokens; it is reset after the block."""
        pinned = [server for server in self.servers if base_url and server.config.base_url == base_url]
        managed = _managed_server_factory()(
            pinned[0] if pinned else self._pick({}),
            tokenizer=tokenizer,
            tool_parser=self.tool_parser,
            preserve_think_blocks=preserve_think_blocks,
        )
        try:
            yield managed
        finally:
            managed.reset()

    def any_healthy(self) -> bool:
        return any(server.server_healthy for server in self.servers)

    async def is_ready(self) -> bool:
        """Whether a server is healthy; if none is, they are probed again, at most once a second."""
        if self.any_healthy():
            return True
        if time.monotonic() - self._last_probe_s >= _PROBE_EVERY_S:
            await asyncio.gather(*(server.probe() for server in self._checked_servers()))
            self._last_probe_s = time.monotonic()
        return self.any_healthy()

    async def wait_until_ready(self, patience_s: float) -> None:
        """Waits until a server is healthy; EnvironmentRunError after `patience_s`.

        A server without health checks counts as healthy.
        """
        checked = self._checked_servers()
        if len(checked) < len(self.servers):
            return
        deadline_s = time.monotonic() + patience_s
        urls = ", ".join(sorted({server.config.base_url or "no address" for server in checked}))
        reported = False
        while not any(await asyncio.gather(*(server.probe() for server in checked))):
            if not reported:
                logger.warning("no model server responds at %s yet; waiting up to %g s", urls, patience_s)
                reported = True
            if time.monotonic() >= deadline_s:
                raise EnvironmentRunError(
                    f"no model server responds at {urls}.",
                    "Start it, or set --openai.base_url to one that runs.",
                )
            await asyncio.sleep(min(_PROBE_EVERY_S, patience_s))

    async def close(self) -> None:
        for server in self.servers:
            await server.close()

    def _checked_servers(self) -> list[Any]:
        return [
            server for server in self.servers if isinstance(server, APIServer) and server.config.health_check
        ]

    def _parts(self, kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        """A request for many completions as several of at most `max_n_completions`."""
        n = kwargs.get("n") or 1
        sizes = [self.max_n_completions] * (n // self.max_n_completions)
        sizes += [n % self.max_n_completions] if n % self.max_n_completions else []
        return [{**kwargs, "n": size} if "n" in kwargs else dict(kwargs) for size in sizes]

    def _pick(self, kwargs: dict[str, Any]) -> Any:
        candidates = [server for server in self.servers if server.server_healthy] or self.servers
        if not candidates:
            raise ConfigError("no model server is configured.", "Set --openai.base_url.")
        split = kwargs.get("split")
        server = max(
            candidates,
            key=lambda server: server.slots(split).free if isinstance(server, APIServer) else 0,
        )
        if isinstance(server, APIServer) and server.config.base_url == LOCAL:
            raise ConfigError(
                "--openai.base_url local is for environments of HermesAgentBaseEnv; this one asks a server.",
                "Start one, hermes engine serve, and give --openai.base_url http://127.0.0.1:8001/v1.",
            )
        return server


def _class_for(server_class: type[APIServer], config: APIServerConfig) -> type[APIServer]:
    return SERVER_TYPES[config.server_type] if inspect.isabstract(server_class) else server_class


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else join_choices(parts)


def server_configs(configs: ServerBaseline | list[APIServerConfig], slurm: bool) -> list[APIServerConfig]:
    """One config for each server.

    A config without an address stands for the servers at the conventional ones: ports from 9000 on the
    inference nodes of the Slurm job, else ports 9004 to 9007 of this machine.
    """
    if isinstance(configs, list):
        nodes = _slurm_nodes() if slurm else []
        if len(nodes) < 2:
            return configs
        return [configs[0].model_copy(update={"base_url": url}) for url in _node_urls(nodes)]
    if isinstance(configs, APIServerConfig) and configs.base_url:
        return [configs]
    nodes = _slurm_nodes() if os.environ.get("SLURM_JOB_NODELIST") else []
    urls = (
        _node_urls(nodes) if len(nodes) > 1 else [f"http://localhost:{port}/v1" for port in range(9004, 9008)]
    )
    shared = {"api_key": "x", **configs.model_dump()}
    return [APIServerConfig(**{**shared, "base_url": url}) for url in urls]


def _slurm_nodes() -> list[str]:
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise ConfigError("slurm is set, but this process does not run in a Slurm job.", "Leave --slurm out.")
    try:
        completed = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"the nodes of the Slurm job cannot be listed: {error}") from error
    return completed.stdout.split()


def _node_urls(nodes: list[str]) -> list[str]:
    training_nodes = int(os.environ.get("NUM_TRAINING_NODES", "1"))
    ports = range(9000, 9000 + 8 // int(os.environ.get("INFER_TP", "1")))
    return [f"http://{node}:{port}/v1" for node in nodes[training_nodes:] for port in ports]
