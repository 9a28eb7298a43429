"""Every socket on which Hermes listens, found by looking for them, asked by those who may not talk to it."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

import hermes
from hermes.cli.main import cli
from hermes.engine.replicas.ray_process import RayPlaces
from hermes.envs.builtin.preference import PreferenceEnv
from hermes.envs.cli.sample_grader import sample_settings
from hermes.envs.tasks.corpus.pages import CorpusServer
from hermes.gateway.sampled import SampledGateway
from hermes.rl.run import last_step
from hermes.tools.browser.proxy import GuardedProxy
from hermes.training.service.client import ServiceConnection
from hermes.training.service.openai_proxy import serve_proxy
from hermes.training.service.token_meter import TokenMeter
from tests.cli.leaves import leaf_commands
from tests.engine.http.engine_process import KEY, Server, launch, make_tiny
from tests.fakes.lora_server import LoraServer
from tests.policies.named_home import RUN, home_with_run
from tests.rl.world import kill_runs, make_home, start_run, tiny_model
from tests.security.other_user import as_other_user, as_root, linux
from tests.security.sockets import is_loopback, listening
from tests.waiting import wait_until

SOURCE = Path(hermes.__file__).parent
TOKEN = "a-token-of-enough-characters"
_OPENS = re.compile(
    r"(create|start)(_unix)?_server|(Threading)?(HTTP|TCP|UDP)Server|Unix(Stream)?(Server|Site)|TCPSite|Listener"
    r"|listen|bind|run_app|run_server|serve_forever|SyncManager|BaseManager|(TCP|Hash)Store|init_process_group"
    r"|init_rpc|start_webserver|create_datagram_endpoint|add_insecure_port|make_server|run_simple"
)
"""Names of the calls by which Python programs open a socket for others, or have a library open one."""
_NO_SOCKETS_FOR_OTHERS = {
    ("hermes.tools.browser.proxy", "asyncio.start_server"),  # on the socket of `listen`
    ("hermes.envs.programs.forward", "socket.create_server"),  # on a sandbox's own loopback
    ("hermes.batch.reward", "signature.bind"),  # arguments to parameters
    ("hermes.rl.supervise.ports", "probe.bind"),  # closed at once: is the port free?
    ("hermes.engine.tensor_parallel.collectives", "dist.init_process_group"),  # NCCL, see below
}


_ON_A_PRIVATE_UNIX_SOCKET = "hermes.envs.openenv.launcher"
"""It is run by an interpreter without Hermes; tests/envs/openenv/test_processes.py looks at the folder."""


def calls_in(path: Path) -> Iterator[tuple[str, str]]:
    """Each call as what it is called on, and its name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield ast.unparse(node.func.value), node.func.attr
            elif isinstance(node.func, ast.Name):
                yield "", node.func.id


def module_name(path: Path) -> str:
    return ".".join(("hermes", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def source_files() -> Iterator[Path]:
    return (path for path in SOURCE.rglob("*.py") if "library" not in path.relative_to(SOURCE).parts)


def listening_modules() -> set[str]:
    """The modules that call `hermes.serving.listen`."""
    return {
        module_name(path)
        for path in source_files()
        if "hermes.serving import" in path.read_text() and ("", "listen") in calls_in(path)
    }


def commands_with_a_port() -> set[str]:
    return {name for name, command in leaf_commands(cli) if any(map(_is_port, command.params))}


def _is_port(parameter: click.Parameter) -> bool:
    return any(option.endswith("-port") for option in parameter.opts)


def test_one_function_opens_every_socket() -> None:
    openings = {
        (module_name(path), f"{owner}.{name}".strip("."))
        for path in source_files()
        for owner, name in calls_in(path)
        if _OPENS.fullmatch(name)
    }
    assert ("hermes.serving", "socket.create_server") in openings, "the search finds what it looks for"
    elsewhere = {
        opening
        for opening in openings
        if opening[0] != "hermes.serving" and opening[1] not in ("listen", "Listener")
    }
    assert elsewhere == _NO_SOCKETS_FOR_OTHERS
    assert {module for module, name in openings if name == "listen"} == listening_modules()


def test_servers_run_on_a_socket_of_that_function_only() -> None:
    """uvicorn opens one itself unless it is given one."""
    runs = {
        (module_name(path), owner, name)
        for path in source_files()
        for owner, name in calls_in(path)
        if owner == "uvicorn" or (owner == "server" and name in ("serve", "run"))
    }
    assert {module for module, _, _ in runs} == {"hermes.serving", _ON_A_PRIVATE_UNIX_SOCKET}
    assert not {name for _, _, name in runs} & {"run", "main"}
    source = (SOURCE / "serving" / "__init__.py").read_text()
    assert source.count("server.serve(") == source.count("server.serve(sockets=[listener.socket])") == 2


def test_ranks_of_a_model_that_have_a_gpu_each_meet_on_loopback() -> None:
    """NCCL cannot be run here. It drops connections that lack the random number of its unique id."""
    source = (SOURCE / "engine" / "tensor_parallel" / "collectives.py").read_text()
    assert 'os.environ["NCCL_SOCKET_IFNAME"] = "=lo"' in source and '"gloo"' not in source


@contextmanager
def started(words: list[str], environ: dict[str, str]) -> Iterator[str]:
    """The address that the program prints. AssertionError with what it prints: it ended."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            announced = None
            while announced is None:
                lines.append(process.stdout.readline())
                assert lines[-1], "".join(lines)
                announced = re.search(r"http://\S+:\d+", lines[-1])
            yield announced[0]
        finally:
            process.terminate()


def command(folder: Path, *arguments: str, **variables: str) -> AbstractContextManager[str]:
    own = {"PATH": os.environ["PATH"], "HOME": str(folder), "HERMES_HOME": str(folder / "home")}
    return started([sys.executable, "-m", "hermes", *arguments, "--port", "0"], {**own, **variables})


_REWARD = """
import sys
from types import SimpleNamespace
from hermes.training.preference.serve import serve
scorer = SimpleNamespace(spec=SimpleNamespace(base_model="base"))
serve(scorer, "liked", sys.argv[1], 0, sys.argv[2] or None, lambda url: print(url, flush=True))
"""


def reward_server(host: str, token: str) -> AbstractContextManager[str]:
    return started([sys.executable, "-c", _REWARD, host, token], dict(os.environ))


@contextmanager
def gateway() -> Iterator[str]:
    async def open_gateway() -> SampledGateway:
        opened = SampledGateway()
        await opened.open()
        return opened

    opened = asyncio.run(open_gateway())
    yield opened.url
    asyncio.run(opened.close())


@contextmanager
def corpus() -> Iterator[str]:
    server = CorpusServer()
    server.start()
    yield server.url
    server.stop()


@contextmanager
def grader() -> Iterator[str]:
    with sample_settings(PreferenceEnv, []) as settings:
        yield settings[-1]


@contextmanager
def openai_proxy(engine: Server, model: Path, folder: Path) -> Iterator[str]:
    with closing(TokenMeter(folder)) as meter:
        connection = ServiceConnection(engine.url, KEY)
        with serve_proxy(connection, str(model), str(model), 0, meter) as proxy:
            yield proxy.url


@contextmanager
def fleet(world: World, *flags: str, **variables: str) -> Iterator[str]:
    with command(
        world.new_folder(),
        *("engine", "fleet", "--type", "vllm", "--base-url", f"{world.vllm.url}/v1"),
        *("--service", world.engine.url, "--folder", str(world.new_folder())),
        *flags,
        **variables,
    ) as url:
        yield url


class World:
    """An engine with a small model, and a folder for every server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = make_tiny(folder / "model")
        self.engine = launch(self.model, folder / "engine")
        self.vllm = LoraServer(self.engine.url, str(self.model), "vllm")

    def new_folder(self) -> Path:
        path = self.folder / os.urandom(4).hex()
        path.mkdir()
        return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("listeners"))
    with made.vllm:
        yield made
    made.engine.kill()


def engine(world: World, *flags: str, **variables: str) -> AbstractContextManager[str]:
    words = ("engine", "serve", "--model", str(world.model), "--device", "cpu", *flags)
    return command(world.new_folder(), *words, **variables)


def policy(world: World, *words: str) -> AbstractContextManager[str]:
    folder = world.new_folder()
    home_with_run(folder / "home", world.model)
    return command(folder, *words)


OPENERS: dict[str, Callable[[World], AbstractContextManager[str]]] = {
    "api": lambda world: command(world.new_folder(), "api"),
    "web": lambda world: command(world.new_folder(), "web", "--no-open"),
    "record serve": lambda world: command(world.new_folder(), "record", "serve"),
    "engine serve": engine,
    "engine serve, two replicas": lambda world: engine(world, "--replicas", "2"),
    "engine serve, two ranks": lambda world: engine(world, "--tensor-parallel-size", "2"),
    "engine fleet": fleet,
    "reward serve": lambda world: reward_server("127.0.0.1", ""),
    "rl serve": lambda world: policy(world, "rl", "serve"),
    "policy serve": lambda world: policy(world, "policy", "serve", f"run:{RUN}"),
    "env openenv": lambda world: command(world.new_folder(), "env", "openenv", "calculator"),
    "the trainer's proxy": lambda world: openai_proxy(world.engine, world.model, world.new_folder()),
    "the gateway of a training rollout": lambda world: gateway(),
    "the corpus of an environment": lambda world: corpus(),
    "the sample grader": lambda world: grader(),
}
"""How each server is started without a token; gives its address."""
MODULES = {
    "hermes.rollouts.server": "api",
    "hermes.web.server": "web",
    "hermes.gateway.service": "record serve",
    "hermes.engine.server.main": "engine serve",
    "hermes.envs.openenv.serve": "env openenv",
    "hermes.rl.fleet.serve": "engine fleet",
    "hermes.training.preference.serve": "reward serve",
    "hermes.training.service.openai_proxy": "the trainer's proxy",
    "hermes.gateway.sampled": "the gateway of a training rollout",
    "hermes.envs.tasks.corpus.pages": "the corpus of an environment",
    "hermes.envs.cli.sample_grader": "the sample grader",
}
"""The opener that runs each module that listens."""
NO_HTTP = {"hermes.tools.browser.proxy", "hermes.engine.replicas.ray_process"}
"""A forward proxy and the workers' own protocol; they have tests of their own below."""
INSIDE_OTHERS = {"train grpo", "train ppo", "train rlhf"}
"""Commands with an option for the port of the trainer's proxy; a whole run is below."""


def test_nothing_that_listens_is_forgotten() -> None:
    assert listening_modules() == {*MODULES, *NO_HTTP}
    assert set(MODULES.values()) <= set(OPENERS)
    assert commands_with_a_port() <= {*OPENERS, *INSIDE_OTHERS}


def ask(url: str, headers: str, path: str = "/", host: str | None = None, address: str = "127.0.0.1") -> str:
    """The reply to a GET with exactly these further headers, sent to this address of the machine."""
    port = int(url.rpartition(":")[2])
    head = f"GET {path} HTTP/1.1\r\nHost: {host or f'127.0.0.1:{port}'}\r\nConnection: close\r\n{headers}\r\n"
    with socket.create_connection((address, port), timeout=60) as client:
        client.sendall(head.encode())
        reply = b""
        while chunk := client.recv(65_536):
            reply += chunk
    return reply.decode("utf-8", "replace")


def status(reply: str) -> int:
    return int(reply.split()[1])


@linux
@as_root
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", OPENERS)
def test_only_its_user_is_answered(name: str, world: World) -> None:
    before = listening()
    with OPENERS[name](world) as url:
        assert listening() - before == {("127.0.0.1", int(url.rpartition(":")[2]))}, "nothing else listens"
        own = f"http://127.0.0.1:{url.rpartition(':')[2]}"
        assert status(ask(url, "")) not in (401, 403), "its own user is answered"
        assert status(ask(url, f"Origin: {own}\r\nSec-Fetch-Site: same-origin\r\n")) not in (401, 403)
        reply = as_other_user(url)
        assert status(reply) == 403
        assert "answers only the user who started it" in reply
        for host in ("evil.example", "127.0.0.1.evil.example", "0.0.0.0", "192.168.0.1:80"):
            assert status(ask(url, "", host=host)) in (400, 403), host
        for origin in ("http://evil.example", "null", "http://127.0.0.1:1", own.replace("http", "https")):
            assert status(ask(url, f"Origin: {origin}\r\n")) == 403, origin
            assert status(ask(url, f"Referer: {origin}/page\r\n")) == 403, origin
        for site in ("cross-site", "same-site"):
            assert status(ask(url, f"Sec-Fetch-Site: {site}\r\n")) == 403, site
        with pytest.raises(OSError):  # it is bound to one address
            ask(url, "", address="127.0.0.2")


@linux
@as_root
def test_the_page_for_people_says_why(world: World) -> None:
    with OPENERS["web"](world) as url:
        reply = as_other_user(url)
        assert "<html" in reply and "This server answers only the user who started it" in reply
        assert "content-security-policy" in reply and "HERMES_WEB_TOKEN" in reply
        assert "Requests from other sites are refused" in ask(url, "Origin: http://evil.example\r\n")


WITH_A_HOST: dict[str, Callable[[World, str], AbstractContextManager[str]]] = {
    "api": lambda world, token: command(
        world.new_folder(), "api", "--host", "0.0.0.0", HERMES_API_TOKEN=token
    ),
    "web": lambda world, token: command(
        world.new_folder(), "web", "--no-open", "--host", "0.0.0.0", HERMES_WEB_TOKEN=token
    ),
    "record serve": lambda world, token: command(
        world.new_folder(),
        *("record", "serve", "--host", "0.0.0.0", "--model", "openai/gpt-4o"),
        HERMES_RECORD_TOKEN=token,
        OPENAI_API_KEY="sk-of-the-owner-of-the-gateway",
    ),
    "engine serve": lambda world, token: engine(world, "--host", "0.0.0.0", HERMES_ENGINE_TOKEN=token),
    "engine fleet": lambda world, token: fleet(world, "--host", "0.0.0.0", HERMES_ENGINE_TOKEN=token),
    "reward serve": lambda world, token: reward_server("0.0.0.0", token),
}


def test_every_command_that_takes_a_host_is_tried_with_one() -> None:
    takes_a_host = {
        name
        for name, command in leaf_commands(cli)
        if any("--host" in parameter.opts for parameter in command.params)
    }
    assert takes_a_host == set(WITH_A_HOST)


@linux
@as_root
def test_the_other_loopback_is_the_same(world: World) -> None:
    with command(world.new_folder(), "web", "--no-open", "--host", "::1") as url:
        assert status(ask(url, "", address="::1")) == 200
        assert status(as_other_user(url, address="::1")) == 403


@pytest.mark.parametrize("name", WITH_A_HOST)
def test_a_second_interface_needs_a_token(name: str, world: World) -> None:
    with pytest.raises(AssertionError, match="without a token"), WITH_A_HOST[name](world, ""):
        pass
    with WITH_A_HOST[name](world, TOKEN) as url:
        port = url.rpartition(":")[2]
        for address in ("127.0.0.2", "127.0.0.1"):
            reply = ask(url, "", address=address, host=f"{address}:{port}")
            assert status(reply) == 401 and "token" in reply
            guessed = ask(url, "Authorization: Bearer wrong-wrong-wrong-wrong\r\n", address=address)
            assert status(guessed) == 401
            assert status(ask(url, f"Authorization: Bearer {TOKEN}\r\n", address=address)) not in (401, 403)


@linux
@as_root
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_socket_of_a_whole_run_refuses_another_user(tmp_path: Path) -> None:
    """Engine, API, trainer with its proxy, environment, and whatever libraries they load."""
    home = make_home(tmp_path / "home", tiny_model(tmp_path / "model"), total_steps=100_000)
    before = listening()
    try:
        run = start_run(home)
        wait_until(lambda: last_step(run) >= 2)
        current = run.status()
        assert current.supervisor is not None
        ids = [current.supervisor, *(part.process_id for part in current.processes.values())]
        sockets = set[tuple[str, int]]().union(*(listening(each.pid) for each in ids if each is not None))
        assert len(sockets - before) >= 2, "the API and the engine"
        for address, port in sockets - before:
            assert is_loopback(address)
            assert status(as_other_user(f"http://{address}:{port}")) in (401, 403)
    finally:
        kill_runs(home)


@linux
@as_root
async def test_the_browsers_proxy_serves_one_user() -> None:
    proxy = GuardedProxy(())
    url = await proxy.start()
    try:
        assert "one user" in await asyncio.to_thread(as_other_user, url)
        own = await asyncio.to_thread(ask, url, "", "http://127.0.0.1:1/")
        assert "one user" not in own
    finally:
        await proxy.close()


def test_a_worker_without_the_secret_is_dropped() -> None:
    ray = SimpleNamespace(util=SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1"))
    with ExitStack() as stack:
        places = stack.enter_context(closing(RayPlaces(ray)))
        client = stack.enter_context(socket.create_connection(places._server.getsockname()[:2], timeout=30))
        client.sendall(b"\0\0\0\x10" + b"x" * 16)
        reply = b""
        while chunk := client.recv(4096):
            reply += chunk
        assert b"#FAILURE#" in reply or not reply.endswith(b"#WELCOME#")
