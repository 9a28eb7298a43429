"""`hermes env`: find, start, check and run environments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.options import CommandGroup, json_option, stored_variables

if TYPE_CHECKING:
    from collections.abc import Callable

    from hermes.core import JSON
    from hermes.envs.cli.check import CheckReport

_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Arguments after the environment, including --help, are passed to the environment."""
_FROM_1 = click.IntRange(min=1)
_dirs = click.option(
    "--dir", "folders", multiple=True, type=click.Path(path_type=Path), help="Look here as well; repeatable."
)


@click.group(cls=CommandGroup)
def env() -> None:
    """List, write, check and run environments.

    An environment is named by the path of its file, or by its name where it is listed.
    """


@env.command("list")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@json_option
def list_(folders: tuple[Path, ...], as_json: bool) -> None:
    """List the environments, without importing them.

    The list has those that come with Hermes, and those in ~/.hermes/environments, rl.environments and
    FOLDERS.
    """
    from hermes.cli.tables import print_table
    from hermes.config.paths import home
    from hermes.envs.cli.discover import BUILT_IN, environment_folders, find_environments
    from hermes.errors import UsageError
    from hermes.safety.text import printable

    for folder in folders:
        if not folder.exists():
            raise UsageError(f"there is no folder {folder}.", "Name a folder with environment files.")
    listing = find_environments(environment_folders(home(), _with_configured(folders)))
    if as_json:
        broken = [{"file_path": str(file.path), "error": file.reason} for file in listing.broken]
        rows = [environment.to_json() for environment in listing.environments]
        click.echo(json.dumps({"environments": rows, "broken": broken}, ensure_ascii=False))
        return
    print_table([("NAME", "DESCRIPTION"), *((env.name, env.description) for env in listing.environments)])
    files = [(env.name, str(env.path)) for env in listing.environments if env.path.parent != BUILT_IN]
    if files:
        click.echo()
        print_table([("YOURS", "FILE"), *files])
    for file in listing.broken:
        click.echo(printable(f"left out: {file.path}: {file.reason}"), err=True)


@env.command()
@click.argument("name")
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=Path(), help="Where to write it.")
@json_option
def new(name: str, folder: Path, as_json: bool) -> None:
    """Write a working environment file to start from."""
    from hermes.envs.cli.template import write_template

    path = write_template(name, folder)
    if as_json:
        click.echo(json.dumps({"file_path": str(path)}))
    else:
        click.echo(f"wrote {path}; try: hermes env check {path}")


@env.command(context_settings=_PASS_ON)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--solutions", is_flag=True, help="Play each solution of Harbor tasks, and an agent that does nothing."
)
@click.option("--red-team", is_flag=True, help="Play cheating policies too: none may earn more than nothing.")
@_dirs
@click.argument("environment")
@click.argument("settings", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
@stored_variables
def check(
    ctx: click.Context,
    environment: str,
    settings: tuple[str, ...],
    folders: tuple[Path, ...],
    as_json: bool,
    red_team: bool,
    solutions: bool,
) -> None:
    """Check an environment without a model.

    It tests that the environment runs and that its reward is sound. `check harbor FOLDER` checks
    Harbor tasks.

    SETTINGS are the environment's, such as --env.seed 3. Exits with 1 if a check fails.
    """
    if environment == "harbor" and any(not word.startswith("--env.") for word in settings):
        from hermes.cli.harbor import check_harbor

        wanted_flags = {"--json": as_json, "--red-team": red_team, "--solutions": solutions}
        flags = [flag for flag, is_on in wanted_flags.items() if is_on]
        ctx.exit(check_harbor.main([*flags, *settings], "hermes env check harbor", standalone_mode=False))
    from hermes.cli.terminal.waiting import waiting
    from hermes.envs.cli.check import check_file
    from hermes.safety.text import printable

    def forward(text: str) -> None:
        click.echo(printable(text), err=True, nl=False)

    named_folders, remaining = _split_options(settings, checks=True)
    as_json, red_team = as_json or "--json" in settings, red_team or "--red-team" in settings
    path = locate_environment(environment, (*folders, *named_folders))
    with waiting(f"playing the tasks of {path.stem}"):
        call = f"{__name__}:check_in_child"
        report = check_file(path, call, remaining, forward, red_team=red_team)
    _print_report(report, as_json)
    ctx.exit(0 if report.passed else 1)


def check_in_child(report: Callable[[JSON], None], path: str, settings: list[str], *, red_team: bool) -> None:
    """Checks an environment in this process, a child of `hermes env check`, and reports each finding."""
    from hermes.envs.cli.check import check_class

    check_class(lambda: load_environment(Path(path)), settings, red_team=red_team, announce=report)


def load_in_child(report: Callable[[JSON], None], path: str) -> None:
    """Loads an environment in this process, a child of a command that is about to load it itself."""
    load_environment(Path(path))
    report(None)


def _print_report(report: CheckReport, as_json: bool) -> None:
    from hermes.cli.tables import print_table

    if as_json:
        findings = [finding.to_json() for finding in report.findings]
        click.echo(json.dumps({"passed": report.passed, "findings": findings}, ensure_ascii=False))
        return
    rows = [(finding.state.value, finding.name, finding.detail) for finding in report.findings]
    print_table([("STATE", "CHECK", "DETAIL"), *rows])


@env.command(context_settings={"ignore_unknown_options": True})
@_dirs
@click.option(
    "--task", "number", default=1, show_default=True, type=click.IntRange(min=1), help="Which task."
)
@click.option(
    "--play",
    "player",
    metavar="WHO",
    help="gold, silence, model, or an exploit; default: a model if SETTINGS name a server, else gold.",
)
@click.option("--step", "stepwise", is_flag=True, help="Wait for a key after each block.")
@json_option
@click.argument("environment")
@click.argument("settings", nargs=-1, type=click.UNPROCESSED)
@stored_variables
def debug(
    environment: str,
    settings: tuple[str, ...],
    folders: tuple[Path, ...],
    number: int,
    player: str | None,
    stepwise: bool,
    as_json: bool,
) -> None:
    """Play one task and show what training sees.

    It prints prompt, steps, tool calls, the parts of the reward, and tokens with their loss mask.

    SETTINGS are the environment's; --openai.base_url URL lets a model play, `local` one in this process.
    """
    from hermes.cli.terminal.waiting import waiting
    from hermes.envs.cli.debug import debug_blocks, debug_class
    from hermes.safety.text import printable
    from hermes.sandbox.child_call import call_in_child

    path = locate_environment(environment, folders)
    with waiting(f"importing {path.name}"):
        problem = call_in_child(f"{__name__}:load_in_child", {"path": str(path)}, path).problem
    if problem is not None:
        raise problem
    with waiting(f"playing task {number} of {path.stem}"):
        report = debug_class(lambda: load_environment(path), settings, number=number, player=player)
    if as_json:
        click.echo(json.dumps(report.to_json(), ensure_ascii=False))
        return
    for heading, text in debug_blocks(report):
        click.secho(printable(heading), bold=True)
        click.echo(f"{printable(text)}\n" if text else "")
        if stepwise:
            click.pause("(any key: next)")
    if report.recorded:
        click.echo(f"recorded: hermes trajectories show {report.rollout.result.trajectory.header.id}")


def _mode(name: str, summary: str) -> click.Command:
    @click.option(
        "--replicas",
        default=None,
        type=click.IntRange(1, 256),
        hidden=name != "serve",
        help="Processes that serve it together; one that dies is started again.",
    )
    @click.option(
        "--ray",
        "ray_address",
        metavar="HOST:PORT",
        hidden=name != "serve",
        help="Run the replicas on the nodes of this Ray cluster; without --replicas: one a node.",
    )
    @click.option(
        "--ray-insecure",
        is_flag=True,
        hidden=name != "serve",
        help="Use a Ray cluster that requires no token.",
    )
    @_dirs
    @click.option("--verifiers", "package", metavar="PACKAGE", help="Run this package of verifiers instead.")
    @click.argument("environment", required=False)
    @click.argument("settings", nargs=-1, type=click.UNPROCESSED)
    @stored_variables
    def run(
        environment: str | None,
        settings: tuple[str, ...],
        folders: tuple[Path, ...],
        package: str | None,
        replicas: int | None,
        ray_address: str | None,
        ray_insecure: bool,
    ) -> None:
        from hermes.compat import atropos
        from hermes.envs.cli.run import run_file

        _check_replica_options(name, replicas, ray_address, ray_insecure)
        if ray_address is not None or (replicas or 1) > 1:
            arguments = _replica_arguments(environment, settings, folders, package)
            _serve_replicas(arguments, replicas, settings, ray_address, ray_insecure)
            return
        if package is not None:
            _run_package(package, name, (*((environment,) if environment else ()), *settings))
            return
        if environment is None:
            raise click.UsageError("Missing argument 'ENVIRONMENT', or --verifiers PACKAGE.")
        named_folders, remaining = _split_options(settings, checks=False)
        path = locate_environment(environment, (*folders, *named_folders))
        atropos.install()
        run_file(path, name, remaining)

    run.__doc__ = summary
    return env.command(name, context_settings=_PASS_ON)(run)


serve = _mode(
    "serve",
    "Feed a trainer through the trajectory API.\n\nSETTINGS: --env.group_size 8, --openai.base_url URL, "
    "--config FILE …; --help after the environment lists its own.",
)
process = _mode("process", "Write scored groups to a JSONL file, with an HTML page to look at them.")
evaluate = _mode("evaluate", "Measure a model on the environment's held-out tasks.")


def _check_replica_options(mode: str, count: int | None, ray_address: str | None, insecure: bool) -> None:
    from hermes.errors import UsageError

    options = {"--replicas": (count or 1) > 1, "--ray": ray_address is not None, "--ray-insecure": insecure}
    for option, is_given in options.items():
        if is_given and mode != "serve":
            raise UsageError(f"{option} is for 'hermes env serve', not for '{mode}'", "leave it out")
    if insecure and ray_address is None:
        raise UsageError("--ray-insecure needs --ray", "add --ray HOST:PORT")


def _replica_arguments(
    environment: str | None, settings: tuple[str, ...], folders: tuple[Path, ...], package: str | None
) -> tuple[str, ...]:
    """The arguments of `hermes` for every replica, which may run in another folder or under another home."""
    if package is None and environment is None:
        raise click.UsageError("Missing argument 'ENVIRONMENT', or --verifiers PACKAGE.")
    if package is None and environment is not None:
        path = locate_environment(environment, folders + tuple(_split_options(settings, checks=False)[0]))
        environment = str(path.absolute()) if Path(environment).is_file() else environment
    options = [word for folder in folders for word in ("--dir", str(folder.absolute()))]
    options += ["--verifiers", package] if package is not None else []
    return ("env", "serve", *options, *((environment,) if environment else ()), *settings)


def _serve_replicas(
    arguments: tuple[str, ...],
    count: int | None,
    settings: tuple[str, ...],
    ray_address: str | None,
    ray_insecure: bool,
) -> None:
    """Runs `hermes env serve` that many times, with the same arguments, here or on a Ray cluster."""
    from hermes.config.paths import home, logs_dir
    from hermes.core.ids import new_id
    from hermes.rl.supervise.env_replicas import EnvReplicaGroup

    logs = logs_dir(home()) / "env_replicas" / new_id()

    def announce(text: str) -> None:
        click.echo(text, err=True)

    if ray_address is None:
        announce(f"{count} replicas; their logs are in {logs}")
        EnvReplicaGroup(arguments, count or 1, logs, announce).run()
        return
    from hermes.cluster.connect import open_cluster, prepare

    prepare(ray_address, insecure=ray_insecure, purpose="--ray", flag="--ray")
    with open_cluster(ray_address, 0) as ray:
        from hermes.rl.supervise.env_ray import RayEnvPlaces

        places = RayEnvPlaces(ray, _split_options(settings, checks=False)[1])
        count = count or places.nodes
        announce(f"{count} replicas on {places.nodes} Ray nodes; their logs are in {logs}")
        EnvReplicaGroup(arguments, count, logs, announce, places.launch).run()


def _run_package(package: str, mode: str, settings: tuple[str, ...]) -> None:
    from hermes.compat.verifiers.env import environment
    from hermes.envs.modes.commandline import run

    run(environment(package), [mode, *settings])


@env.command(context_settings={"ignore_unknown_options": True})
@_dirs
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: a free one.")
@click.option(
    "--sessions", default=64, show_default=True, type=_FROM_1, help="Most episodes at the same time."
)
@click.option("--tasks", default=1000, show_default=True, type=_FROM_1, help="Tasks that seeds choose from.")
@click.argument("environment")
@click.argument("settings", nargs=-1, type=click.UNPROCESSED)
@stored_variables
def openenv(
    environment: str,
    settings: tuple[str, ...],
    folders: tuple[Path, ...],
    port: int,
    sessions: int,
    tasks: int,
) -> None:
    """Serve an environment as an OpenEnv server.

    A client, such as TRL's trainer, plays the model: it resets episodes and calls the tools of the
    environment, and submit_answer, until an observation has the reward. It answers
    only its user, on this machine.

    SETTINGS are the environment's, such as --env.seed 3.
    """
    from hermes.envs.openenv.serve import open_environment, serve_environment
    from hermes.serving import run_event_loop

    path = locate_environment(environment, folders)
    server = open_environment(load_environment(path), settings)

    def announce(url: str) -> None:
        click.echo(f"serving {server.display_name} for OpenEnv clients at {url}")

    run_event_loop(serve_environment(server, port, sessions, tasks, announce))


@env.command()
@json_option
def clean(as_json: bool) -> None:
    """Remove what trials of Harbor tasks have built.

    It removes the roots and images of tasks, which are built again when needed, and what killed trials left.
    """
    from hermes.cli.harbor import clean_harbor

    clean_harbor(as_json)


@env.group()
def verifiers() -> None:
    """Install the interpreter that runs environments of the package verifiers."""


@verifiers.command("install")
@click.option("--version", default=None, help="Version of verifiers; by default the newest supported one.")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Where; by default ~/.hermes/verifiers/.venv."
)
@click.argument("packages", nargs=-1)
@json_option
def install_verifiers(
    version: str | None, folder: Path | None, packages: tuple[str, ...], as_json: bool
) -> None:
    """Install verifiers and PACKAGES of environments.

    It is apart from Hermes because verifiers needs an older openai. A package is code that you trust: it runs
    as you, with the keys of your shell, when it is installed and when its environment is loaded.
    """
    from hermes.cli.terminal.waiting import waiting
    from hermes.compat.verifiers import interpreter

    chosen = (folder or interpreter.default_folder()).expanduser().absolute()
    with waiting(f"installing into {chosen}"):
        python = interpreter.install(chosen, version or interpreter.VERSION, packages)
    if as_json:
        click.echo(json.dumps({"python": str(python)}))
    else:
        click.echo(f"installed; the interpreter is {python}")


def locate_environment(environment: str, folders: tuple[Path, ...]) -> Path:
    from hermes.config.paths import home
    from hermes.envs.cli.discover import environment_folders, locate

    return locate(environment, environment_folders(home(), _with_configured(folders)))


def _with_configured(folders: tuple[Path, ...]) -> list[Path]:
    """The folders, and those of the setting rl.environments."""
    from hermes.config.load import load

    return [*folders, *(Path(folder).expanduser() for folder in load().settings.rl.environments)]


def _split_options(settings: tuple[str, ...], *, checks: bool) -> tuple[list[Path], tuple[str, ...]]:
    """The values of --dir after the environment, and the arguments that are the environment's.

    `checks`: --json and --red-team are the command's too.
    """
    folders, remaining = [], []
    words = iter(settings)
    for word in words:
        if word == "--dir":
            folders.append(Path(next(words, ".")))
        elif word.startswith("--dir="):
            folders.append(Path(word.removeprefix("--dir=")))
        elif not (checks and word in ("--json", "--red-team")):
            remaining.append(word)
    return folders, tuple(remaining)


def load_environment(path: Path) -> type:
    from hermes.compat import atropos
    from hermes.envs.cli.run import load_class

    atropos.install()
    return load_class(path)
