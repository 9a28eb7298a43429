"""Runs environments of `verifiers`. This file is executed by an interpreter that has no Hermes.

Protocol: one JSON object a line. A request is {"id", "method", "params"}; its reply is {"id", "result"} or
{"id", "error": {"kind", "message", "where"}}. Methods: `load`, `task`, `run`. Requests run concurrently. The
end of the input ends the process. What the environment prints goes to standard error.

Two kinds of packages are supported: those that export a Taskset, optionally with an Env or a Harness
(verifiers 0.4), and those whose module has `load_environment(**arguments)` (verifiers 0.3).
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.metadata
import importlib.util
import json
import math
import os
import sys
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

SUPPORTED = ((0, 3), (0, 4))
KEY_VARIABLE = "HERMES_ROLLOUT_KEY"
"""Names the variable with the gateway's key; the gateway needs none, and clients insist on one."""
_HUB_ERRORS = ("DatasetNotFoundError", "HfHubHTTPError", "LocalEntryNotFoundError", "OfflineModeIsEnabled")
_HUB_SIGNS = ("huggingface.co", "hf.co", "Hugging Face Hub", "HF_HUB_OFFLINE")
_CLASSIC_NAMES = ("SingleTurnEnv", "MultiTurnEnv", "ToolEnv", "Environment", "Rubric", "StatefulToolEnv")


class WorkerFailure(Exception):
    """A failure with a kind by which Hermes chooses its sentence."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class LoadedEnvironment(Protocol):
    """The interface of an environment to the loop, whichever kind it is."""

    description: dict[str, Any]

    def task(self, split: str, index: int) -> dict[str, Any] | None: ...
    async def run(self, params: dict[str, Any]) -> dict[str, Any]: ...


def module_name(package: str) -> str:
    """The module of a package or hub id: owner/some-name@1.0 is some_name."""
    return package.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_").lower()


def has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def installed_version() -> str:
    """WorkerFailure: verifiers is not installed, or is a version that this file does not know."""
    try:
        version = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        raise WorkerFailure("no verifiers", f"{sys.executable} has no package 'verifiers'") from None
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers not in SUPPORTED:
        raise WorkerFailure("version", f"{sys.executable} has verifiers {version}")
    return version


class TasksetEnvironment:
    """A package that exports a Taskset: `verifiers.v1`."""

    def __init__(self, env: Any, vf: Any, version: str) -> None:
        self._env, self._vf = env, vf
        self._stream: Iterator[Any] = iter(env.taskset)
        self._tasks: list[Any] = list(self._stream) if env.taskset.bounded else []
        train_tasks = len(self._tasks) if env.taskset.bounded else None
        self.description = {"api": "taskset", "version": version, "train_tasks": train_tasks, "eval_tasks": 0}

    def task(self, split: str, index: int) -> dict[str, Any] | None:
        """None: there is no such task, or no split `eval`, which tasksets have by their settings only."""
        if split != "train":
            return None
        while len(self._tasks) <= index:
            try:
                self._tasks.append(next(self._stream))
            except StopIteration:
                return None
        data = self._tasks[index].data
        return {"name": data.name or data.id or str(index), "prompt": data.prompt_text}

    async def run(self, params: dict[str, Any]) -> dict[str, Any]:
        vf = self._vf
        context = vf.ModelContext(
            model=params["model"],
            client=vf.EvalClientConfig(base_url=params["base_url"], api_key_var=KEY_VARIABLE),
            sampling=vf.SamplingConfig(**params["sampling"]),
        )
        (slot,) = self._env.slots(self._tasks[params["index"]])
        episode = await self._env.run_slot(slot, context)
        return {
            "errors": [_error_json(error) for error in episode.errors],
            "traces": [_trace_json(trace) for trace in episode.traces],
        }


def _trace_json(trace: Any) -> dict[str, Any]:
    scored = all(reward is not None for reward in trace.rewards.values())
    rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
    return {
        "session": trace.id,
        "agent": trace.agent.name,
        "trainable": bool(trace.agent.trainable),
        "score": float(trace.reward) if trace.ok and scored else None,
        "parts": finite({**trace.metrics, **rewards}),
        "stop": trace.stop_condition,
        "errors": [] if trace.ok else [_error_json(error) for error in trace.errors],
        "timed_out": bool(trace.is_timeout),
    }


def _error_json(error: Any) -> dict[str, Any]:
    return {"type": error.type, "message": error.message}


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


class ClassicEnvironment:
    """A package whose module has `load_environment(**arguments)`."""

    def __init__(self, env: Any, vf: Any, version: str) -> None:
        self._env, self._vf = env, vf
        self._rows = {"train": env.get_dataset(), "eval": env.build_eval_dataset()}
        """`eval` is None where the package has no tasks for evaluation of its own."""
        self.description = {
            "api": "load_environment",
            "version": version,
            "train_tasks": len(self._rows["train"]),
            "eval_tasks": len(self._rows["eval"] or ()),
        }
        if getattr(env, "requires_group_rollouts", False):
            raise WorkerFailure(
                "group rewards",
                f"{type(env).__name__} has reward functions that compare the rollouts of a group",
            )

    def task(self, split: str, index: int) -> dict[str, Any] | None:
        rows = self._rows[split]
        if rows is None or index >= len(rows):
            return None
        row = rows[index]
        return {"name": str(row.get("example_id", index)), "prompt": _last_text(row.get("prompt"))}

    async def run(self, params: dict[str, Any]) -> dict[str, Any]:
        client = self._vf.ClientConfig(
            api_base_url=params["base_url"], api_key_var=KEY_VARIABLE, max_retries=0
        )
        row = dict(self._rows[params["split"]][params["index"]])
        output = await self._env.run_rollout(row, client, params["model"], params["sampling"])
        error = output.get("error")
        failure = [] if not error else [{"type": str(error.get("error")), "message": str(error)}]
        trace = {
            "session": "",
            "agent": "agent",
            "trainable": True,
            "score": None if error else output.get("reward"),
            "parts": finite(output.get("metrics") or {}),
            "stop": output.get("stop_condition"),
            "errors": failure,
            "timed_out": False,
        }
        return {"errors": [], "traces": [trace]}


def _last_text(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    content = prompt[-1].get("content") if prompt else ""
    return content if isinstance(content, str) else json.dumps(content)


async def load(params: dict[str, Any], stack: AsyncExitStack) -> LoadedEnvironment:
    """The environment of a package; `stack` closes what it opens."""
    version = installed_version()
    package = params["package"]
    name = module_name(package)
    has_builtin = has_module(f"verifiers.v1.tasksets.{name}")
    if not has_builtin and not has_module(name):
        raise WorkerFailure("no package", f"{sys.executable} has no module '{name}'")
    module = _import_author_module(name, version) if not has_builtin else None
    if module is not None and callable(getattr(module, "load_environment", None)):
        return await _load_classic(module, package, params, version)
    if module is not None and not hasattr(module, "__all__"):
        raise WorkerFailure("no environment", f"module '{name}' has neither __all__ nor load_environment")
    vf = importlib.import_module("verifiers.v1")
    try:
        taskset_class = importlib.import_module("verifiers.v1.utils.loaders").taskset_class
        taskset_class(package)
    except (AttributeError, TypeError) as error:
        raise WorkerFailure("no environment", str(error)) from error
    config = vf.resolve_env_config(_env_settings(vf, package, params))
    _refuse_local_commands(vf, config, params)
    env = vf.load_environment(config)
    await stack.enter_async_context(env.serving())
    return await asyncio.to_thread(TasksetEnvironment, env, vf, version)


def _import_author_module(name: str, version: str) -> Any:
    """WorkerFailure: it uses an API that this version of verifiers does not have."""
    try:
        return importlib.import_module(name)
    except (ImportError, AttributeError) as error:
        text = str(error)
        names_classic = "verifiers" in text and any(f"'{classic}'" in text for classic in _CLASSIC_NAMES)
        # What it imports beside verifiers came with the older version, as `datasets` did.
        if (names_classic or _defines_load_environment(name)) and not version.startswith("0.3."):
            raise WorkerFailure(
                "version", f"module '{name}' uses the classic API, which verifiers {version} does not have"
            ) from error
        raise


def _defines_load_environment(name: str) -> bool:
    """By the source of a module that cannot be imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return False
    tree = ast.parse(Path(spec.origin).read_bytes())
    return any(isinstance(node, ast.FunctionDef) and node.name == "load_environment" for node in tree.body)


async def _load_classic(module: Any, package: str, params: dict[str, Any], version: str) -> LoadedEnvironment:
    # In the main thread: the constructors of verifiers 0.3 install signal handlers.
    env = module.load_environment(**params["args"])
    vf = importlib.import_module("verifiers")
    if not hasattr(env, "run_rollout"):
        raise WorkerFailure(
            "no environment",
            f"load_environment of '{module.__name__}' returned {type(env).__name__}, which is no environment",
        )
    env.env_id = env.env_id or package
    return await asyncio.to_thread(ClassicEnvironment, env, vf, version)


def _env_settings(vf: Any, package: str, params: dict[str, Any]) -> dict[str, Any]:
    """The user's arguments, completed: each role gets a harness, a runtime and a limit of turns.

    Roles for which author or user chose a harness or runtime keep it. Without a choice verifiers would take
    the `bash` harness in a sandbox of a cloud service.
    """
    settings: dict[str, Any] = json.loads(json.dumps(params["args"]))
    settings.setdefault("taskset", {})["id"] = package
    fallback = vf.default_harness_id(package)
    harness = params["harness"] or ("null" if fallback == "bash" else fallback)
    fields = vf.env_config_type(package, settings.get("id") or "").model_fields
    for role, field in fields.items():
        if not isinstance(field.default, vf.AgentConfig):
            continue
        chosen = settings.setdefault(role, {})
        if params["harness"] or field.default.harness is None:
            chosen.setdefault("harness", {}).setdefault("id", harness)
        if "runtime" not in field.default.model_fields_set:
            chosen.setdefault("runtime", {"type": params["runtime"]})
        if field.default.max_turns is None:
            chosen.setdefault("max_turns", params["max_turns"])
    return settings


def _refuse_local_commands(vf: Any, config: Any, params: dict[str, Any]) -> None:
    harnesses = config.agent_harnesses()
    for role, settings in harnesses.items():
        is_local = isinstance(getattr(config, role).runtime, vf.SubprocessConfig)
        if is_local and vf.load_harness(settings).EXECUTES_CODE and not params["allow_local_commands"]:
            raise WorkerFailure(
                "local commands",
                f"the harness '{settings.id}' of '{role}' runs the model's commands on this machine",
            )


def describe_failure(error: BaseException, package: str) -> dict[str, str]:
    """The error part of a reply; `where` is the last line of the package's own code."""
    if isinstance(error, WorkerFailure):
        return {"kind": error.kind, "message": str(error), "where": ""}
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    texts = [f"{type(link).__name__}: {link}" for link in chain]
    needs_hub = any(type(link).__name__ in _HUB_ERRORS for link in chain) or any(
        sign in text for sign in _HUB_SIGNS for text in texts
    )
    return {"kind": "hub" if needs_hub else "raised", "message": texts[0], "where": _where(error, package)}


def _where(error: BaseException, package: str) -> str:
    name = module_name(package)
    frames = traceback.extract_tb(error.__traceback__)
    package_frames = [
        frame for frame in frames if f"/{name}/" in frame.filename or frame.filename.endswith(f"{name}.py")
    ]
    return f"{package_frames[-1].filename}:{package_frames[-1].lineno}" if package_frames else ""


async def read_requests(descriptor: int) -> AsyncIterator[dict[str, Any]]:
    reader = asyncio.StreamReader(limit=1 << 26)
    source = os.fdopen(descriptor, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), source
    )
    try:
        while line := await reader.readline():
            yield json.loads(line)
    finally:
        transport.close()


class RequestLoop:
    """Answers requests until the input ends."""

    def __init__(self, output: Any, stack: AsyncExitStack) -> None:
        self._output, self._stack = output, stack
        self._package = ""
        self._environment: LoadedEnvironment | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self, requests: AsyncIterator[dict[str, Any]]) -> None:
        async for request in requests:
            task = asyncio.create_task(self._handle(request))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _handle(self, request: dict[str, Any]) -> None:
        try:
            result = await self._call(request["method"], request["params"])
            reply = {"id": request["id"], "result": result}
        except Exception as error:  # noqa: BLE001  the package's code may raise anything; it becomes the reply
            traceback.print_exc()
            reply = {"id": request["id"], "error": describe_failure(error, self._package)}
        self._output.write(json.dumps(reply).encode() + b"\n")
        self._output.flush()

    async def _call(self, method: str, params: dict[str, Any]) -> Any:
        if method == "load":
            self._package = params["package"]
            self._environment = await load(params, self._stack)
            return self._environment.description
        assert self._environment is not None, "the first request is load"
        if method == "task":
            return await asyncio.to_thread(self._environment.task, params["split"], params["index"])
        return await self._environment.run(params)


async def main() -> None:
    # The descriptors of the protocol are kept apart: what the package prints must not end up in it.
    output = os.fdopen(os.dup(1), "wb")
    source = os.dup(0)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.setdefault(KEY_VARIABLE, "unused")
    async with AsyncExitStack() as stack:
        await RequestLoop(output, stack).serve(read_requests(source))


if __name__ == "__main__":
    asyncio.run(main())
