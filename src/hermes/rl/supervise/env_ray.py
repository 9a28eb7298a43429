"""Environment replicas on the nodes of a Ray cluster: each is a process that an actor starts and watches.

They reserve no CPU and are distributed evenly over the nodes. Output and end of each reach this machine, so
that the group that watches them is the one that watches local processes. What a node must have itself: Hermes
of the same version, the environment's file under the same path, and keys.

The actor has one environment process on its node, and sends its output and end to the front. The process
never outlives the actor: it would go on with the items of the one that takes its place.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes.cluster.actors import (
    ActorEnd,
    EvenPlacement,
    Versions,
    check_versions,
    installed_versions,
    wait_for_end,
)
from hermes.config import yaml_file
from hermes.config.environment import RL_POLICY_VARIABLE, RL_RUN_VARIABLE, without_stored
from hermes.config.providers import API_URL_VARIABLE, trajectory_api_url
from hermes.envs.modes.commandline import parse
from hermes.errors import UsageError
from hermes.rl.process import HERMES, ProcessSpec
from hermes.rl.supervise.env_replicas import ReplicaEnd
from hermes.safety.access import leads_to_loopback
from hermes.serving.trajectory_api import DEFAULT_URL, TOKEN_VARIABLE

_SENT = (TOKEN_VARIABLE, API_URL_VARIABLE, RL_POLICY_VARIABLE, RL_RUN_VARIABLE, "WANDB_MODE")
"""Variables of this process that every replica has; keys are each node's own."""


class RayEnvPlaces:
    """Starts environment processes on a cluster."""

    def __init__(self, ray: Any, settings: Sequence[str]) -> None:
        """`ray`: the module, connected to a cluster. `settings`: the environment's, as on the command line.

        UsageError: a node could not reach an address that they name.
        """
        self._ray = ray
        self._placement = EvenPlacement(ray)
        self._files = _config_file(settings)
        addresses = [str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]]
        self.nodes = len(addresses)
        if len(set(addresses)) > 1:
            check_addresses(settings)

    def launch(self, spec: ProcessSpec) -> RayEnvProcess:
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        sent = {name: os.environ[name] for name in _SENT if name in os.environ}
        job = EnvJob(_arguments(spec), {**sent, **spec.environ}, self._files, str(Path.cwd()))
        actor_class = self._ray.remote(
            max_restarts=0,
            max_concurrency=2,
            scheduling_strategy=self._placement.choose_node(),
            **EvenPlacement.RESOURCES,
        )(EnvActor)
        return RayEnvProcess(self._ray, actor_class.remote(), job, spec.log)


class RayEnvProcess:
    """One actor with its process, as the group sees it."""

    def __init__(self, ray: Any, actor: Any, job: EnvJob, log: Path) -> None:
        self._ray, self._actor = ray, actor
        self._started: EnvStarted | None = None
        self._exit_code: int | None = None
        self._end: ActorEnd | None = None
        self._reports = actor.serve.options(num_returns="streaming").remote(job, installed_versions())
        threading.Thread(target=self._watch, args=(log,), name="hermes-ray-watch", daemon=True).start()

    @property
    def location(self) -> str | None:
        return None if self._started is None else f"pid {self._started.pid} on node {self._started.node}"

    def poll(self) -> ReplicaEnd | None:
        if self._end is None:
            return None
        if self._exit_code is None:
            return ReplicaEnd(None, self._end.text, self._end.problem)
        return ReplicaEnd.from_code(self._exit_code)

    def terminate(self) -> None:
        self._actor.terminate.remote()

    def kill(self) -> None:
        self._ray.kill(self._actor, no_restart=True)

    def _watch(self, log: Path) -> None:
        end = wait_for_end(self._ray, lambda: self._read_reports(log))
        self.kill()  # even if it was only unreachable: another one takes its place
        self._end = end

    def _read_reports(self, log: Path) -> None:
        with log.open("ab", buffering=0) as file:
            for reference in self._reports:
                report = self._ray.get(reference)
                if isinstance(report, EnvStarted):
                    self._started = report
                elif isinstance(report, bytes):
                    file.write(report)
                else:
                    self._exit_code = report


def _arguments(spec: ProcessSpec) -> tuple[str, ...]:
    """The arguments of `hermes` alone: the interpreter is the node's."""
    return spec.command[len(HERMES) :]


def _config_file(settings: Sequence[str]) -> dict[str, str]:
    """The argument that names the --config file, and the file's text."""
    for position, word in enumerate(settings):
        argument = settings[position + 1] if word == "--config" and position + 1 < len(settings) else word
        if word == "--config" or word.startswith("--config="):
            path = Path(argument.removeprefix("--config="))
            try:
                return {argument: path.read_text(encoding="utf-8")}
            except OSError as error:
                raise UsageError(f"{path} cannot be read: {error.strerror}", "check --config") from error
    return {}


def check_addresses(settings: Sequence[str]) -> None:
    """UsageError: an address of this machine's loopback, which is another machine on another node."""
    arguments = parse(["serve", *settings])
    written = (
        {} if arguments.config is None else yaml_file.parse(arguments.config.read_text("utf-8"), "").data
    )
    file_env, servers = written.get("env") or {}, written.get("openai") or []
    api_url = (
        arguments.spaces.get("env", {}).get("rollout_server_url")
        or file_env.get("rollout_server_url")
        or trajectory_api_url(os.environ)
        or DEFAULT_URL
    )
    flag_url = arguments.spaces.get("openai", {}).get("base_url")
    in_file = [server.get("base_url") for server in (servers if isinstance(servers, list) else [servers])]
    addresses = {
        "--env.rollout_server_url": [api_url],
        "--openai.base_url": [flag_url] if flag_url else in_file,
    }
    for option, urls in addresses.items():
        for url in urls:
            if url and leads_to_loopback(str(url)):
                raise UsageError(
                    f"{url} cannot be reached from the other nodes of the Ray cluster",
                    f"set {option} to an address of this machine in the cluster's network; the server there "
                    "needs --host and a token",
                )


_POLL_S = 0.2
_CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class EnvJob:
    """One environment process, for any node."""

    arguments: tuple[str, ...]
    """The arguments of `hermes`."""
    environ: Mapping[str, str] = field(repr=False)
    """On top of the node's own environment."""
    files: Mapping[str, str] = field(repr=False)
    """Argument that is the path of a file on the front → the file's text; the node gets a copy."""
    cwd: str
    """Where it runs, on nodes that have this folder."""


@dataclass(frozen=True, slots=True)
class EnvStarted:
    pid: int
    node: str


class EnvActor:
    """Two of its methods run at once: `serve`, and `terminate` beside it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def serve(self, job: EnvJob, versions: Versions) -> Iterator[EnvStarted | bytes | int]:
        """Where it runs, then its output as it comes, last its exit code."""
        check_versions(versions)
        ray: Any = importlib.import_module("ray")
        with tempfile.TemporaryDirectory(prefix="hermes-env-") as folder:
            copies = _write_files(job.files, Path(folder))
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "hermes.rl.supervise.lifeline"),
                    *(copies.get(word, word) for word in job.arguments),
                ],
                env={**without_stored(os.environ), **job.environ},
                cwd=job.cwd if Path(job.cwd).is_dir() else None,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._process = process
            yield EnvStarted(process.pid, ray.util.get_node_ip_address())
            yield from _output(process)
            _signal_group(process.pid, signal.SIGKILL)  # processes that it may have left behind
            yield process.returncode

    def terminate(self) -> None:
        """The signal that ends an environment in order; a second one ends it at once."""
        if self._process is not None and self._process.poll() is None:
            _signal_group(self._process.pid, signal.SIGTERM)


def _output(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Until the process has ended, even if another one still has its output open."""
    assert process.stdout is not None
    output = process.stdout.fileno()
    os.set_blocking(output, False)
    while True:
        ended = process.poll() is not None
        readable, _, _ = select.select([output], [], [], 0 if ended else _POLL_S)
        chunk = os.read(output, _CHUNK_BYTES) if readable else b""
        if chunk:
            yield chunk
        elif ended:
            return
        elif readable:  # it has closed its output, and runs
            process.wait()


def _write_files(files: Mapping[str, str], folder: Path) -> dict[str, str]:
    copies = {}
    for number, (argument, text) in enumerate(files.items()):
        path = folder / f"{number}-{Path(argument.rpartition('=')[2]).name}"
        path.write_text(text, encoding="utf-8")
        option, equals, _ = argument.rpartition("=")
        copies[argument] = f"{option}{equals}{path}"
    return copies


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # it has ended
        return
