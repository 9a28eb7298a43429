"""task.toml of a Harbor task as frozen values: every field is honoured, or refused by its name.

Schema versions up to 1.4 are read, with the older spellings (`version`, `memory = "4G"`, `allow_internet`).
A field that is unknown, or that asks for something that Hermes cannot do (a GPU, Windows, MCP servers), is a
`TaskError` that names it: a task never runs with a part of its file ignored. Pure: no file is read here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

from hermes.errors import UsageError

T = TypeVar("T")
NetworkMode = Literal["public", "no-network", "allowlist"]
NEWEST_SCHEMA = (1, 4)
_UNITS_MB = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")


class TaskError(UsageError):
    """A task that cannot be used: the message names the file or field, and the reason."""


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """A command that must succeed before the agent starts."""

    command: str
    interval_s: float
    timeout_s: float
    start_period_s: float
    retries: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The requirements that a task has of the place where it runs."""

    docker_image: str | None = None
    build_timeout_s: float = 600.0
    cpus: int | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    workdir: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    healthcheck: Healthcheck | None = None
    network: NetworkMode = "public"
    allowed_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentPart:
    timeout_s: float | None = None
    user: str | None = None
    network: NetworkMode | None = None
    """None: the machine's."""


@dataclass(frozen=True, slots=True)
class Collect:
    """A command that runs in the agent's files, after the agent and before verification."""

    command: str
    timeout_s: float
    user: str | None


@dataclass(frozen=True, slots=True)
class VerifierPart:
    timeout_s: float = 600.0
    user: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    machine: Machine | None = None
    """Where a separate verifier runs, if not in the task's image."""
    separate: bool | None = None
    """None: as the task's verifier, for a step; else shared."""
    collect: tuple[Collect, ...] = ()
    network: NetworkMode | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A path that a separate verifier gets from the agent's files, and its name there."""

    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class StepPart:
    name: str
    agent: AgentPart
    verifier: VerifierPart
    min_reward: Mapping[str, float]
    """By key of reward.json; `reward` is that of a plain number. Below one of them later steps do not run."""
    healthcheck: Healthcheck | None
    artifacts: tuple[Artifact, ...]


@dataclass(frozen=True, slots=True)
class TaskFile:
    name: str | None
    machine: Machine
    agent: AgentPart
    verifier: VerifierPart
    solution_variables: Mapping[str, str]
    artifacts: tuple[Artifact, ...]
    steps: tuple[StepPart, ...]
    step_rewards: Literal["mean", "final"]
    metadata: Mapping[str, Any]


class Table:
    """One table of the file, whose keys are taken out one by one: what is left at the end is refused."""

    def __init__(self, values: Any, path: str, environ: Mapping[str, str]) -> None:
        if not isinstance(values, dict):
            raise TaskError(f"{path or 'task.toml'} is no table.")
        self._values = dict(values)
        self._path = path
        self.environ = environ

    def field(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def take(self, name: str, read: Callable[[Any], T], default: T) -> T:
        """The value as `read` makes it. TaskError: `read` raised ValueError or TypeError."""
        value = self._values.pop(name, None)
        if value is None:
            return default
        try:
            return read(value)
        except (ValueError, TypeError) as error:
            raise TaskError(f"{self.field(name)}: {error}.") from error

    def table(self, name: str) -> Table | None:
        value = self._values.pop(name, None)
        return None if value is None else Table(value, self.field(name), self.environ)

    def tables(self, name: str) -> list[Table]:
        values = self._values.pop(name, None) or []
        if not isinstance(values, list):
            raise TaskError(f"{self.field(name)} is no list of tables.")
        return [Table(value, f"{self.field(name)}[{n}]", self.environ) for n, value in enumerate(values)]

    def refuse(self, name: str, harmless: Sequence[Any], reason: str) -> None:
        """TaskError if the field asks for what Hermes does not do."""
        value = self._values.pop(name, None)
        if value is not None and value not in harmless:
            raise TaskError(f"{self.field(name)} = {_short(value)}: {reason}.")

    def end(self) -> None:
        if self._values:
            names = ", ".join(self.field(name) for name in sorted(self._values))
            raise TaskError(f"unknown field: {names}.", "Hermes runs no task of which it ignores a part.")


def read_task_file(values: Any, environ: Mapping[str, str] | None = None) -> TaskFile:
    """`environ`: the variables of this machine that `${NAME}` and `${NAME:-default}` stand for."""
    root = Table(values, "", environ or {})
    root.take("schema_version", _schema, None)
    root.take("version", str, None)  # of the schema in old files; authors state their task's own in it
    root.take("source", _text, None)
    nothing: dict[str, Any] = {}
    about = root.take("task", _mapping, nothing)  # descriptive, whatever an author writes in it
    try:
        task_name = _text(about["name"]) if "name" in about else None
    except ValueError as error:
        raise TaskError(f"task.name: {error}.") from error
    machine = _machine(root.table("environment"))
    agent = _agent(root.table("agent"))
    verifier = _verifier(root.table("verifier"))
    solution = root.table("solution")
    solution_variables = _variables(solution) if solution else {}
    if solution:
        solution.end()
    task_file = TaskFile(
        name=task_name,
        machine=machine,
        agent=agent,
        verifier=verifier,
        solution_variables=solution_variables,
        artifacts=_artifacts(root),
        steps=tuple(_step(table) for table in root.tables("steps")),
        step_rewards=cast(
            "Literal['mean', 'final']",
            root.take("multi_step_reward_strategy", _choice("mean", "final"), "mean"),
        ),
        metadata={**about, **root.take("metadata", _mapping, nothing)},
    )
    root.end()
    names = [step.name for step in task_file.steps]
    if len(set(names)) < len(names):
        raise TaskError("steps: two of them have the same name.")
    return task_file


def _machine(table: Table | None) -> Machine:
    if table is None:
        return Machine()
    table.refuse("gpus", (0,), "no GPU can be given to a task")
    table.refuse("gpu_types", ([],), "no GPU can be given to a task")
    table.refuse("tpu", ({}, ""), "no TPU can be given to a task")
    table.refuse("os", ("linux",), "only Linux tasks run")
    table.refuse("mcp_servers", ([],), "MCP servers of a task are not started")
    table.refuse("skills_dir", ("",), "skills of a task are not given to the agent")
    mode = table.take("network_mode", _network, None)
    internet = table.take("allow_internet", _boolean, None)
    if mode is None:
        mode = "no-network" if internet is False else "public"
    memory_mb = table.take("memory", _size_mb, None)
    storage_mb = table.take("storage", _size_mb, None)
    machine = Machine(
        docker_image=table.take("docker_image", _text, None) or None,
        build_timeout_s=table.take("build_timeout_sec", _seconds, 600.0),
        cpus=table.take("cpus", _positive, None),
        memory_mb=table.take("memory_mb", _positive, memory_mb),
        storage_mb=table.take("storage_mb", _positive, storage_mb),
        workdir=table.take("workdir", _absolute, None),
        variables=_variables(table),
        healthcheck=_healthcheck(table.table("healthcheck")),
        network=mode,
        allowed_hosts=tuple(table.take("allowed_hosts", _list, [])),
    )
    table.end()
    return machine


def _agent(table: Table | None) -> AgentPart:
    if table is None:
        return AgentPart()
    part = AgentPart(
        table.take("timeout_sec", _seconds, None), table.take("user", _user, None), _override(table)
    )
    table.end()
    return part


def _verifier(table: Table | None) -> VerifierPart:
    if table is None:
        return VerifierPart()
    own_machine = table.table("environment")
    machine = _machine(own_machine) if own_machine else None
    mode = table.take("environment_mode", _choice("shared", "separate"), None)
    if mode == "shared" and machine is not None:
        raise TaskError("verifier.environment is given, and verifier.environment_mode is shared.")
    part = VerifierPart(
        timeout_s=table.take("timeout_sec", _seconds, 600.0),
        user=table.take("user", _user, None),
        variables=_variables(table),
        machine=machine,
        separate=mode != "shared" if mode or machine else None,
        collect=tuple(_collect(entry) for entry in table.tables("collect")),
        network=_override(table),
    )
    table.end()
    return part


def _collect(table: Table) -> Collect:
    table.refuse("service", ("main",), "there is only the service main")
    command = table.take("command", _text, None)
    if command is None:
        raise TaskError(f"{table.field('command')} is missing.")
    entry = Collect(command, table.take("timeout_sec", _seconds, 60.0), table.take("user", _user, None))
    table.end()
    return entry


def _step(table: Table) -> StepPart:
    name = table.take("name", _text, None)
    if not name or not re.fullmatch(r"[\w.-]+", name) or name in (".", ".."):
        raise TaskError(f"{table.field('name')}: a step needs the name of its folder.")
    step = StepPart(
        name=name,
        agent=_agent(table.table("agent")),
        verifier=_verifier(table.table("verifier")),
        min_reward=table.take("min_reward", _least, {}),
        healthcheck=_healthcheck(table.table("healthcheck")),
        artifacts=_artifacts(table),
    )
    table.end()
    return step


def _healthcheck(table: Table | None) -> Healthcheck | None:
    if table is None:
        return None

    def seconds(name: str, default: float) -> float:
        return table.take(f"{name}_sec", _not_negative, table.take(name, _not_negative, default))

    command = table.take("command", _text, None)
    if command is None:
        raise TaskError(f"{table.field('command')} is missing.")
    check = Healthcheck(
        command,
        interval_s=seconds("interval", 5.0),
        timeout_s=seconds("timeout", 30.0),
        start_period_s=seconds("start_period", 0.0),
        retries=table.take("retries", _positive, 3),
    )
    table.take("start_interval_sec", _not_negative, None)  # the check is tried at once, which is as good
    table.end()
    return check


def _artifacts(table: Table) -> tuple[Artifact, ...]:
    def read(value: Any) -> tuple[Artifact, ...]:
        artifacts = []
        for entry in _list(value):
            if isinstance(entry, str):
                artifacts.append(Artifact(_absolute(entry), _absolute(entry)))
                continue
            names = set(_mapping(entry)) - {"source", "destination", "service"}
            if names or entry.get("service", "main") != "main" or "source" not in entry:
                raise ValueError(f"{_short(entry)} is more than a source and a destination")
            source = _absolute(entry["source"])
            artifacts.append(Artifact(source, _absolute(entry.get("destination") or source)))
        return tuple(artifacts)

    return table.take("artifacts", read, ())


def _override(table: Table) -> NetworkMode | None:
    table.take("allowed_hosts", _list, [])  # an allowlist is refused where the trial begins
    return table.take("network_mode", _network, None)


def _variables(table: Table) -> dict[str, str]:
    """The variables, with those of this machine filled in."""

    def read(value: Any) -> dict[str, str]:
        variables = {}
        for name, text in _mapping(value).items():
            if not _NAME.match(name):
                raise ValueError(f"{name!r} is no name of a variable")
            variables[name] = _VARIABLE.sub(fill, str(text))
        return variables

    def fill(match: re.Match[str]) -> str:
        value = table.environ.get(match[1], match[2])
        if value is None:
            raise ValueError(f"the variable {match[1]} of this machine is needed, and is not set")
        return value

    return table.take("env", read, {})


def _schema(value: Any) -> str:
    numbers = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:\.\d+)?", str(value))
    if numbers is None:
        raise ValueError(f"{_short(value)} is no version")
    if (int(numbers[1]), int(numbers[2] or 0)) > NEWEST_SCHEMA:
        raise ValueError(f"version {value} is newer than {'.'.join(map(str, NEWEST_SCHEMA))}")
    return str(value)


def _choice(*names: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in names:
            raise ValueError(f"{_short(value)} is none of {', '.join(names)}")
        return str(value)

    return read


def _network(value: Any) -> NetworkMode:
    return cast(NetworkMode, _choice("public", "no-network", "allowlist")(value))


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{_short(value)} is no text")
    return value


def _user(value: Any) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value)


def _absolute(value: Any) -> str:
    text = _text(value)
    if not text.startswith("/") or ".." in text.split("/"):
        raise ValueError(f"{_short(value)} is no absolute path")
    return text


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{_short(value)} is neither true nor false")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{_short(value)} is no number")
    return float(value)


def _seconds(value: Any) -> float:
    if _number(value) <= 0:
        raise ValueError(f"{_short(value)} is not above 0")
    return float(value)


def _not_negative(value: Any) -> float:
    if isinstance(value, str) and (match := re.fullmatch(r"([\d.]+)(ms|s|m)?", value)):  # docker's spelling
        value = float(match[1]) * {"ms": 0.001, "m": 60.0}.get(match[2], 1.0)
    if _number(value) < 0:
        raise ValueError(f"{_short(value)} is negative")
    return float(value)


def _positive(value: Any) -> int:
    return math.ceil(_seconds(value))


def _size_mb(value: Any) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGTkmgt])i?[Bb]?", str(value))
    if match is None:
        raise ValueError(f"{_short(value)} is no size such as 4G")
    return max(1, math.ceil(float(match[1]) * _UNITS_MB[match[2].lower()]))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{_short(value)} is no list")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{_short(value)} is no table")
    return value


def _least(value: Any) -> dict[str, float]:
    rewards = value if isinstance(value, dict) else {"reward": value}
    return {name: _number(reward) for name, reward in rewards.items()}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
