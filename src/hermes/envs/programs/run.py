"""One rollout of a program: a sandbox of its own, the model behind one URL, the record, the tokens.

The program has no network but its model: inside the sandbox a forwarder leads from a port of the sandbox's
own loopback to a socket that is shown to it. With the back end `local` it runs on this machine, unisolated.

When the block of `finished_program` begins, everything that the program started has been ended. A program
that cannot be started, crashes, hangs or never calls its model has no reward, and its group is dropped with
the reason; so is one whose model failed. One that spent its model calls is scored as it left things.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.config import paths
from hermes.core import Header, JSONObject, Relation, Source, new_id
from hermes.core.history import Echo
from hermes.core.outcome import COMPLETED
from hermes.envs.agent.policy import SlottedChat
from hermes.envs.agent.result import AgentResult, read_result
from hermes.envs.agent.rollout import RolloutContext, RolloutSpec
from hermes.envs.agent.sequences import Exactness, build_sequences
from hermes.envs.failures import GroupDroppedError
from hermes.envs.programs.forward import READY
from hermes.envs.programs.launch import Place, Program, launch, shell_line
from hermes.errors import ContextOverflowError, SandboxError, UsageError
from hermes.gateway.journal import Group, Journal, Recording
from hermes.gateway.sampled import SampledCall, SampledGateway, SampledRollout
from hermes.gateway.settle import records
from hermes.models.tokens.chat import TokenChat
from hermes.models.usage import price_of
from hermes.safety.approval import AllowAll
from hermes.sandbox import open_sandbox
from hermes.store import Reader, Record
from hermes.tools.base import Workbench

if TYPE_CHECKING:
    from hermes.sandbox.base import CommandResult, Sandbox

_PORT = 47_311
"""Of the model inside a sandbox, whose loopback is its own."""
_INSIDE = "/tmp/.agent"
_START_S = 30.0
_TAIL_CHARS = 2_000
"""Of the program's output, what its trajectory keeps."""
MODEL_NAME = "policy"


@dataclass
class ProgramHost:
    """What all rollouts of an environment share. `open` before the first, `close` after the last."""

    home: Path
    gateway: SampledGateway = field(default_factory=SampledGateway)
    journal: Journal | None = None
    _folder: Path | None = None

    async def open(self, secrets: dict[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hermes-model-"))
        self._folder.chmod(0o711)
        self.journal = Journal(self.home / "recordings", secrets)
        await self.gateway.open(self.socket_path)

    async def close(self) -> None:
        if self._folder is not None:
            await self.gateway.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    @property
    def socket_path(self) -> Path:
        assert self._folder is not None, "the host is open"
        return self._folder / "model"

    @property
    def socket_folder(self) -> str:
        return str(self.socket_path.parent)


@dataclass(frozen=True)
class ProgramSettings:
    """How the rollouts of an environment run their program."""

    program: Program
    timeout_s: float
    max_calls: int
    setup: str | None = None
    """A command that prepares the workspace before the program starts."""
    train_side: bool = False
    """Whether calls beside the task (titles, summaries) are trained on."""
    takes_reward: bool = False
    scores_crashes: bool = False
    """Whether a program that ended with an error is scored by what it left."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A program that has ended, with everything that it started."""

    result: CommandResult
    rollout: SampledRollout


@asynccontextmanager
async def finished_program(
    context: RolloutContext, spec: RolloutSpec, host: ProgramHost, settings: ProgramSettings
) -> AsyncIterator[tuple[AgentResult, Workbench]]:
    """Runs the program to its end, and keeps its sandbox open for the block; see the module."""
    assert host.journal is not None, "the host is open"
    journal, group, config = host.journal, new_id(), context.config
    model = context.new_model()
    inner = model.model if isinstance(model, SlottedChat) else model
    rollout = SampledRollout(
        model,
        spec.sampling,
        inner if isinstance(inner, TokenChat) else None,
        keep=lambda call: asyncio.wrap_future(journal.append(group, call)),
        overrides=True,
        max_calls=settings.max_calls,
        takes_reward=settings.takes_reward,
    )
    journal.note(Group(group, facts=_facts(context, spec, settings.program)))
    async with AsyncExitStack() as stack:
        sandbox = await _open(context, spec, host, settings, stack)
        path = stack.enter_context(host.gateway.rollout(rollout))
        ended = await _run(sandbox, f"{host.gateway.url}{path}", path, spec, host, settings, rollout)
        await sandbox.kill_all()
        recorded = await asyncio.to_thread(_record, context, spec, host, settings, group, ended)
        result = _check(ended, settings, recorded)
        bench = Workbench(
            sandbox=sandbox,
            settings=config.settings,
            approver=AllowAll(),
            trajectory_id=result.trajectory.header.id,
            resources={"home": config.home, "environ": config.environ, "config": config},
        )
        stack.push_async_callback(bench.close)
        yield result, bench


async def _open(
    context: RolloutContext,
    spec: RolloutSpec,
    host: ProgramHost,
    settings: ProgramSettings,
    stack: AsyncExitStack,
) -> Sandbox:
    """The sandbox with the task's files in it, after the command that prepares it."""
    sandbox = await open_sandbox(
        context.config.settings.sandbox,
        interactive=False,
        workspaces=paths.workspaces_dir(context.config.home),
        shown_paths=(*settings.program.shown_paths, host.socket_folder),
    )
    stack.push_async_callback(sandbox.close)
    for path, data in spec.files.items():
        await sandbox.write_file(path, data)
    if settings.setup:
        prepared = await sandbox.run(settings.setup)
        if prepared.exit_code != 0:
            raise GroupDroppedError(
                "setup", f"the set-up command ended with {prepared.exit_code}: {_last_line(prepared)}"
            )
    return sandbox


async def _run(
    sandbox: Sandbox,
    url: str,
    path: str,
    spec: RolloutSpec,
    host: ProgramHost,
    settings: ProgramSettings,
    rollout: SampledRollout,
) -> _Ended:
    scratch = Path(tempfile.mkdtemp(prefix="hermes-agent-"))
    try:
        inside = _INSIDE if sandbox.isolated else str(scratch)
        if sandbox.isolated:
            await _start_forwarder(sandbox, host)
            url = f"http://127.0.0.1:{_PORT}{path}"
        run_place = Place(url, sandbox.workspace, f"{inside}/prompt", f"{inside}/home", scratch, inside)
        prompt = spec.prompt
        context_tokens = rollout.tokens.context_tokens if rollout.tokens else None
        started = launch(settings.program, prompt, MODEL_NAME, context_tokens, run_place)
        (scratch / "home").mkdir(exist_ok=True)
        (scratch / "prompt").write_text(prompt, "utf-8")
        if sandbox.isolated:
            await _copy_in(sandbox, scratch, inside)
        stdin = prompt.encode() if settings.program.reads_prompt_from_input else b""
        line = shell_line(started.command, settings.program.path)
        result = await sandbox.run(
            line, timeout_s=settings.timeout_s, env=dict(started.variables), stdin=stdin
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return _Ended(result, rollout)


async def _start_forwarder(sandbox: Sandbox, host: ProgramHost) -> None:
    """SandboxError: the model cannot be reached from inside."""
    source = importlib.resources.files("hermes.envs.programs").joinpath("forward.py").read_text()
    words = ["python3", "-I", "-S", "-c", source, str(host.socket_path), str(_PORT)]
    process = await sandbox.start(f"exec {shlex.join(words)}")
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _START_S
    while READY not in process.output().split():
        if process.exit_code is not None or loop.time() > deadline_s:
            raise SandboxError(f"the model cannot be reached from the sandbox: {process.output().strip()}")
        await process.wait(0.01)


async def _copy_in(sandbox: Sandbox, folder: Path, inside: str) -> None:
    """The client's settings and the prompt: a few small files."""
    await sandbox.run(f"mkdir -p {shlex.quote(inside)}/home")
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            name = f"{inside}/{path.relative_to(folder)}"
            await sandbox.write_file(name, path.read_bytes())


def _facts(context: RolloutContext, spec: RolloutSpec, program: Program) -> JSONObject:
    """What a trajectory is known by if this process is killed before it has written it."""
    return {"agent": program.agent, "run": context.run_id, "environment": context.name, "task": spec.task_id}


def _record(
    context: RolloutContext,
    spec: RolloutSpec,
    host: ProgramHost,
    settings: ProgramSettings,
    group: str,
    ended: _Ended,
) -> AgentResult | None:
    """Writes the rollout's trajectories; the main one's result, or None if the model was never called."""
    assert host.journal is not None, "the host is open"
    path = host.journal.rotate(group)
    if path is None or not ended.rollout.calls:
        if path is not None:
            path.unlink()
        return None
    recording = Recording(path)
    model_calls = {call.id: call.reply.call for call in ended.rollout.calls}
    with Reader(paths.db_path(context.config.home)) as reader:
        price = lambda name: price_of(context.config.settings, name)  # noqa: E731
        new_records = list(records(recording, reader, price, model_calls))
    main = next((record for record in new_records if _is_main(record)), new_records[0])
    exactness = build_sequences(
        call.reply.call for call in trained_calls(ended.rollout.calls, settings.train_side)
    )
    written = None
    for record in new_records:
        is_main = record is main
        header = _header(record.trajectory.header, context, spec, settings.program)
        if is_main:
            header = replace(header, metadata={**header.metadata, **_account(ended, exactness)})
        outcome = COMPLETED if is_main else record.trajectory.outcome
        record = replace(record, trajectory=replace(record.trajectory, header=header, outcome=outcome))
        context.writer.restore(record).result()
        written = record if is_main else written
    recording.delete()
    assert written is not None, "one of them is the main one"
    result = read_result(written.trajectory)
    return replace(result, turns_used=len(ended.rollout.calls), exactness=exactness)


def _is_main(record: Record) -> bool:
    return record.trajectory.header.relation not in (Relation.SIDE, Relation.DELEGATE)


def _header(header: Header, context: RolloutContext, spec: RolloutSpec, program: Program) -> Header:
    """The header of a recorded conversation as a rollout's."""
    return replace(
        header,
        source=Source.ENV,
        session_id=None,
        run_id=context.run_id,
        task_id=spec.task_id,
        sample_index=spec.sample_index,
        metadata={
            **header.metadata,
            "agent": program.agent,
            "environment": context.name,
            **spec.metadata,
        },
    )


def trained_calls(calls: Sequence[SampledCall], train_side: bool) -> list[SampledCall]:
    """The calls whose tokens are trained on: not those beside the task, nor of another distribution."""
    has_tools = any(call.offers_tools for call in calls)
    return [
        call for call in calls if not call.not_honoured and (train_side or call.offers_tools or not has_tools)
    ]


def _account(ended: _Ended, exactness: Exactness) -> JSONObject:
    """What became of the rollout's calls and tokens."""
    calls = ended.rollout.calls
    sampled = sum(len(call.reply.call.tokens.sampled_ids) for call in calls if call.reply.call.tokens)
    trained = sum(sum(mask) for mask in (sequence.loss_mask for sequence in exactness.sequences))
    account: JSONObject = {
        "exit_code": ended.result.exit_code,
        "output": ended.result.output[-_TAIL_CHARS:],
        "calls": len(calls),
        "sequences": len(exactness.sequences),
        "tokens_sampled": sampled,
        "tokens_trained": trained,
        "calls_cancelled": ended.rollout.cancelled,
        "calls_refused": ended.rollout.refused,
        "first_prompt_tokens": _prompt_tokens(calls[0]),
        "context_tokens": ended.rollout.tokens.context_tokens if ended.rollout.tokens else None,
    }
    if ended.rollout.reward is not None:
        account["program_reward"] = ended.rollout.reward
    return account | _echoes(ended.rollout.tokens)


def _prompt_tokens(call: SampledCall) -> int:
    trace = call.reply.call.tokens
    return len(trace.prompt_ids) if trace else call.reply.call.usage.prompt


def _echoes(tokens: TokenChat | None) -> JSONObject:
    """How answers came back, where the model keeps count."""
    if tokens is None:
        return {}
    counts = {f"answers_{echo.value}": tokens.echoes.counts[echo] for echo in Echo}
    return {**counts, "answers_foreign": tokens.echoes.foreign}


def _check(ended: _Ended, settings: ProgramSettings, result: AgentResult | None) -> AgentResult:
    """The result; raises if the rollout has no reward through no fault of the policy."""
    command, failure = ended.result, ended.rollout.failure
    if command.timed_out:
        raise GroupDroppedError("timeout", f"the program ran for {settings.timeout_s:g} s and was ended")
    if isinstance(failure, ContextOverflowError) and (result is None or command.exit_code != 0):
        raise GroupDroppedError("context length", failure.message)
    if failure is not None and not isinstance(failure, ContextOverflowError | UsageError):
        raise failure
    end = f"exit code {command.exit_code}: {_last_line(command)}"
    if result is None:
        reason = failure.message if failure else "it never called its model"
        raise GroupDroppedError("program", f"the program ended with {end}; {reason}")
    if command.exit_code != 0 and not settings.scores_crashes and not ended.rollout.refused:
        raise GroupDroppedError("program", f"the program ended with {end}")
    return result


def _last_line(command: CommandResult) -> str:
    lines = [line.strip() for line in command.output.splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "it printed nothing"
