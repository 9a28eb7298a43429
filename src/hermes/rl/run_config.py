"""The configuration of a run, as its `config.yaml` records it: what environment, trainer and supervisor read.

Fields that are unknown here are kept: an environment has its own, and older versions wrote others. A file
keeps exactly the fields that were set in it.
"""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes.core import JSONObject
from hermes.disk.files import atomic_write, read_text
from hermes.errors import ConfigError
from hermes.rl.config.fields import TrainerFields

ENV = "env"
"""The process of a run's first, or only, environment."""
_OF_MIXTURE = ("min_batch_allocation", "inference_weight")
"""Fields of an environment that its share of the batches decides."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="allow")

    def get(self, name: str) -> Any:
        """A field that may be unknown here."""
        return getattr(self, name, None)


class EnvSection(_Section):
    """The settings of an environment, of which these are read outside it."""

    total_steps: int = 0
    steps_per_eval: int = 1
    batch_size: int = 0
    max_batches_offpolicy: int = 1
    wandb_name: str | None = None
    use_wandb: bool = False
    rollout_server_url: str = ""
    data_dir_to_save_evals: str | None = None
    texts: dict[str, str] | None = None
    """Texts of the policy that the run trains; None: not an agent environment, or an older run."""


class ServerSection(_Section):
    """The model server that the environments sample from."""

    base_url: str | None = None


class MixtureEntry(_Section):
    """One environment of a run that has several, with its share of each batch."""

    environment: str
    environment_file: str
    evaluates: bool
    weight: float
    groups: int
    env: EnvSection


class RunSection(_Section):
    """The section that the supervisor reads."""

    run_id: str = ""
    note: str = ""
    """The note of the person who started the run."""
    environment: str = ENV
    environment_file: str = ""
    evaluates: bool = False
    model: str = ""
    device: str = "auto"
    toolsets: list[str] | None = None
    """Those that the policy is trained with; None: not recorded."""
    service: str | None = None
    """The Tinker service that trains; None: the run's own engine."""
    ports: dict[str, int] = Field(default_factory=dict)
    cwd: str = ""
    """Where the run was started."""
    created_at_ms: int | None = None
    task: str | None = None
    """The task of the agent that started the run; None: a person did."""
    max_hours: float | None = None
    max_usd: float | None = None
    price: JSONObject | None = None
    """US dollars per million tokens at the service."""
    mixture: list[MixtureEntry] | None = None
    """All environments of a run that has several, the first included."""

    @property
    def label(self) -> str:
        """The environments, with their weights if there are several."""
        entries = self.mixture or ()
        return " + ".join(f"{entry.environment}:{entry.weight:g}" for entry in entries) or self.environment

    @property
    def policy_url(self) -> str:
        """Where the newest weights are sampled: the run's engine, or the proxy of its trainer."""
        return f"http://127.0.0.1:{self.ports['trainer' if self.service else 'engine']}"

    @property
    def engine_url(self) -> str:
        """The address that the run's trainer trains at."""
        return self.service or self.policy_url


class RunEnvironment(BaseModel):
    """One environment of a run, as a process."""

    process: str
    """Its name among the run's processes: `env` for the first, `env-NAME` for others."""
    file: str
    evaluates: bool
    api_name: str | None
    """Under which it registers with the trajectory API; None: whatever its class says."""

    def config_path(self, folder: Path) -> Path:
        """In the folder of the run."""
        return folder / ("config.yaml" if self.process == ENV else f"{self.process}.yaml")


class RunConfig(_Section):
    """The whole file."""

    env: EnvSection = Field(default_factory=EnvSection)
    openai: list[ServerSection] = Field(default_factory=lambda: [ServerSection()])
    tinker: TrainerFields = Field(default_factory=TrainerFields)
    run: RunSection = Field(default_factory=RunSection)

    @property
    def env_replicas(self) -> int:
        """Processes of each environment. The start of a run replaces `auto`; older files have no number."""
        count = self.tinker.env_replicas
        return 1 if count == "auto" else count

    @classmethod
    def read(cls, path: Path) -> RunConfig:
        """ConfigError names what is wrong in the file."""
        from hermes.config import yaml_file

        return cls.parse(yaml_file.parse(read_text(path) or "", str(path)).data, str(path))

    @classmethod
    def parse(cls, data: JSONObject, source: str) -> RunConfig:
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"]))
            raise ConfigError(
                f"{source}: {field}: {problem['msg']}", "move the run's folder aside"
            ) from error

    def write(self, folder: Path) -> None:
        """Where a run has several environments, each has a file of its own; the first has the run's."""
        for entry, environment in zip(self.run.mixture or (), self.environments(), strict=False):
            if environment.process == ENV:
                for name in _OF_MIXTURE:
                    setattr(self.env, name, entry.env.get(name))
            else:
                run = self.run.model_copy(update={"mixture": None})
                config = self.model_copy(update={"env": entry.env, "run": run})
                atomic_write(environment.config_path(folder), config.as_yaml())
        atomic_write(folder / "config.yaml", self.as_yaml())

    def as_yaml(self) -> str:
        return dump_yaml(self.model_dump(mode="json", exclude_unset=True))

    def environments(self) -> list[RunEnvironment]:
        """The first is the run's own; a run without a mixture has no others."""
        later_entries = (self.run.mixture or [])[1:]
        first = RunEnvironment(
            process=ENV,
            file=self.run.environment_file,
            evaluates=self.run.evaluates,
            api_name=self.env.wandb_name if later_entries else None,
        )
        later_environments = [
            RunEnvironment(
                process=f"{ENV}-{re.sub(r'[^A-Za-z0-9_-]+', '-', entry.environment)}",
                file=entry.environment_file,
                evaluates=entry.evaluates,
                api_name=entry.env.wandb_name,
            )
            for entry in later_entries
        ]
        return [first, *later_environments]

    def env_sections(self) -> dict[str, EnvSection]:
        """The section of each environment of the run by its name; the first is the run's own."""
        later_sections = {entry.environment: entry.env for entry in (self.run.mixture or [])[1:]}
        return {self.run.environment: self.env, **later_sections}

    def assign_ports(self, ports: dict[str, int]) -> None:
        """Sets the ports, and the addresses that follow from them."""
        self.run.ports = ports
        for section in self.env_sections().values():
            section.rollout_server_url = f"http://127.0.0.1:{ports['api']}"
        self.openai[0].base_url = f"{self.run.policy_url}/v1"


def dump_yaml(data: JSONObject) -> str:
    from ruamel.yaml import YAML

    text = StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.dump(data, text)
    return text.getvalue()
