"""The fleet of a run: from the run's fields to the command that starts it, and the check of its servers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hermes.errors import UsageError
from hermes.rl.config.fields import TrainerFields
from hermes.rl.fleet.dialect import DIALECTS
from hermes.rl.fleet.members import KEY_VARIABLE
from hermes.rl.fleet.serve import join_servers

FLEET = "fleet"
"""Its name among the ports of a run, and among its processes."""
_ADAPTERS = "adapters"


@dataclass(frozen=True, slots=True)
class RunFleet:
    servers: tuple[str, ...]
    server_type: str
    folder: str
    """Where the adapters are written; empty: in the run's folder."""

    @classmethod
    def from_fields(cls, fields: TrainerFields) -> RunFleet | None:
        """`fields`: the section `tinker` of a run's configuration. None: the engine samples."""
        servers = tuple(fields.sampling_servers)
        return cls(servers, fields.sampling_server_type, fields.sampling_folder) if servers else None

    def command(self, engine_url: str, run_folder: Path, port: int) -> tuple[str, ...]:
        addresses = (word for server in self.servers for word in ("--base-url", server))
        folder = self.folder or str(run_folder / _ADAPTERS)
        return (
            *("engine", "fleet", *addresses, "--type", self.server_type, "--folder", folder),
            *("--service", engine_url, "--port", str(port)),
        )

    def environment_flags(self, port: int) -> tuple[str, ...]:
        """Where an environment samples; evaluations stay at the engine, which has the weights of any step."""
        address = f"http://127.0.0.1:{port}/v1"
        return ("--openai.base_url", address, "--openai.server_type", self.server_type)

    def check(self, service: str | None, environ: Mapping[str, str]) -> None:
        """UsageError: the run trains elsewhere than at its own engine, or a server cannot be used."""
        if service is not None:
            raise UsageError(
                f"sampling_servers need the run's own engine, and rl.service is {service}",
                "unset rl.service and TINKER_BASE_URL, or sample at the service",
            )
        key = environ.get(KEY_VARIABLE)
        asyncio.run(join_servers(self.servers, DIALECTS[self.server_type], key))
