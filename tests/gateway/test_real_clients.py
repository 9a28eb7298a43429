"""The real agents, headless, through the gateway, against a scripted provider and our own engine.

`make nightly` installs the newest releases under .compat, by npm and pip; without a network the tests are
skipped. HERMES_TEST_CLIENTS names a folder with node_modules/.bin or bin in which they are installed already.
HERMES_AGENTS_TABLE=docs/agents.md writes the table of that page from what was seen.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.config.load import Config
from hermes.config.paths import db_path
from hermes.core import Relation, Sampling, StepKind
from hermes.core.model_call import INTERRUPTED
from hermes.models.base import ChatRequest
from hermes.models.remote.wire import Dialect, chat_body
from hermes.store import Reader
from tests.engine.http.engine_process import launch
from tests.engine.http.openai_parts import encode, prompt_ids, teach
from tests.gateway.conftest import stored
from tests.gateway.real_clients import (
    CLIENTS,
    RealClient,
    Run,
    check_same,
    program_folder,
    question_of,
    version_of,
)
from tests.gateway.scripted import Call, Json, Reply, ScriptedProvider, last_user_text, texts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SHELLS = {"bash": "command", "exec_command": "cmd", "shell": "command"}
SPAWNS = {"task": "prompt", "agent": "prompt", "spawn_agent": "message"}
WITH_TOOLS = tuple(client for client in CLIENTS if client.name != "aider")
COMPACTIONS = {
    "claude-code": "by `/compact`",
    "codex": "by the count of tokens",
    "pi": "of a refused prompt",
    "opencode": "of a refused prompt",
}
"""What makes it happen here."""
SUMMARY = "A folder was looked at, and the small job goes on. JOB-compact"
CUT_AFTER = {"messages": 4, "responses": 6, "chat": 3}
BEGIN, END = "<!-- agents: written by tests/gateway/test_real_clients.py -->\n", "<!-- /agents -->\n"


def named(client: object) -> str:
    return client.name if isinstance(client, RealClient) else str(client)


def tool_names(body: Json) -> dict[str, str]:
    """The names of the tools on offer, by their lower-case form."""
    tools = [inner for tool in body.get("tools") or () for inner in (tool.get("tools") or [tool])]
    names = [tool.get("name") or (tool.get("function") or {}).get("name") or "" for tool in tools]
    return {name.lower(): name for name in names}


class Script:
    """By the last JOB in the prompt, and by how many results there are: tools, sub-agents, faults."""

    def __init__(self, client: RealClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._compacts = self._compacted = False

    def __call__(self, body: Json) -> Reply:
        items = body.get("input") or body.get("messages") or []
        kinds = [item.get("type") or item["role"] for item in items if isinstance(item, dict)]
        results = sum("output" in kind or kind == "tool" for kind in kinds)
        results += str(items).count("'tool_result'")
        jobs = re.findall(
            r"JOB-(\w+)", " ".join(text for item in items for text in texts(item.get("content")))
        )
        names = tool_names(body)
        shell = next((name for name in SHELLS if name in names), None)
        self._compacts |= "compact" in jobs
        if self._compacts and not self._compacted and "summar" in last_user_text(body).lower():
            self._compacted = True
            return Reply(SUMMARY, prompt_tokens=500)
        if not jobs or shell is None:
            return Reply("All done.", prompt_tokens=500)
        with self._lock:
            self._requests[jobs[-1]] += 1
            number = self._requests[jobs[-1]]
        if jobs[-1] == "busy" and number == 1:
            return Reply(status=529 if self._client.protocol == "messages" else 503)
        if jobs[-1] == "cut" and number == 1:
            return Reply("I will look at it now.", cut_after=CUT_AFTER[self._client.protocol])
        if jobs[-1] == "compact" and number == 2 and self._client.protocol == "chat":
            return Reply(status=400, error="prompt is too long: 999999 tokens > 128000 maximum")
        if results or (jobs[-1] == "compact" and number > 1):
            return self._end(names[shell], results)
        spawn = next((name for name in SPAWNS if name in names), None)
        if jobs[-1] == "agents" and spawn:
            task = {SPAWNS[spawn]: "Please do the small job. JOB-tool"}
            if spawn != "spawn_agent":
                task |= {"description": "small job", "subagent_type": "general-purpose"}
                task["subagent_type"] = "general" if self._client.name == "opencode" else "general-purpose"
            return Reply("I delegate.", calls=(Call(names[spawn], json.dumps(task)),))
        arguments: Json = {SHELLS[shell]: "echo hello", "description": "say hello"}
        oddly_spaced = json.dumps(arguments, separators=(",  ", " :"))
        if jobs[-1] == "broken" and number == 1:
            oddly_spaced = f'{{"{SHELLS[shell]}": "echo hello", '
        command = Call(names[shell], oddly_spaced)
        full = {"prompt_tokens": 260_000} if jobs[-1] == "compact" and self._client.name == "codex" else {}
        return Reply("I look.", calls=(command,) * (2 if jobs[-1] == "two" else 1), **full)

    def _end(self, shell: str, results: int) -> Reply:
        """mini-swe-agent has no answer without a call: it ends by a command."""
        if self._client.name == "mini-swe-agent":
            submit = json.dumps({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})
            return Reply("All done.", calls=(Call(shell, submit),), prompt_tokens=1000 + results)
        return Reply("All done.", prompt_tokens=1000 + results)


Seen = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    """What each client was seen to do; the table of docs/agents.md, where it is asked for."""
    facts: Seen = {client.name: {} for client in CLIENTS}
    yield facts
    if page := os.environ.get("HERMES_AGENTS_TABLE"):
        text = Path(page).read_text("utf-8")
        before, rest = text.split(BEGIN)
        Path(page).write_text(f"{before}{BEGIN}{table(facts)}{END}{rest.split(END)[1]}", "utf-8")


COLUMNS = {
    "version": "version",
    "tool": "a tool",
    "two": "two at once",
    "translated": "translated",
    "agents": "sub-agent",
    "broken": "broken arguments",
    "busy": "529",
    "cut": "cut stream",
    "compact": "compaction",
    "own": "its own record",
}


def table(facts: Seen) -> str:
    """What was seen, and what is known, in two tables."""
    lines = [_row("agent", *COLUMNS.values()), "|---" * (len(COLUMNS) + 1) + "|"]
    lines += [_row(one.title, *(facts[one.name].get(name, "") for name in COLUMNS)) for one in CLIENTS]
    lines += ["", _row("agent", "how it is pointed here", "what its own record leaves out"), "|---|---|---|"]
    lines += [_row(one.title, one.pointed, one.omits) for one in CLIENTS]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


@pytest.fixture
def client(request: pytest.FixtureRequest, seen: Seen) -> RealClient:
    chosen: RealClient = request.param
    if "version" not in seen[chosen.name]:
        seen[chosen.name]["version"] = version_of(chosen, program_folder(chosen))
    return chosen


@pytest.fixture
def run(config: Config, client: RealClient, tmp_path: Path) -> Run:
    return Run(client, config, tmp_path / "user")


@pytest.fixture
def provider(client: RealClient) -> Iterator[ScriptedProvider]:
    with ScriptedProvider(Script(client)) as scripted:
        yield scripted


def each(clients: tuple[RealClient, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("client", clients, ids=named, indirect=True)


@pytest.mark.parametrize("translate", [False, True], ids=["passed-on", "translated"])
@pytest.mark.parametrize("job", ["tool", "two"])
@each(WITH_TOOLS)
def test_a_task_with_tools(
    config: Config,
    tmp_path: Path,
    run: Run,
    provider: ScriptedProvider,
    client: RealClient,
    job: str,
    translate: bool,
    seen: Seen,
) -> None:
    if translate and client.protocol == "chat":
        pytest.skip("it speaks chat completions itself")
    run.job(provider, job, passed_on=not translate)
    (main,) = [trajectory for trajectory in stored(config) if trajectory.header.relation is None]
    kinds = [step.kind for step in main.steps if step.kind is not StepKind.INPUT]
    results = [StepKind.TOOL] * (2 if job == "two" else 1)
    assert kinds == [StepKind.MODEL, *results, StepKind.MODEL]
    assert all("hello" in step.message.content for step in main.steps if step.kind is StepKind.TOOL)
    assert main.answer == "All done." and main.header.metadata["agent"] == client.name
    seen[client.name]["translated" if translate else job] = "yes"
    if client.sessions is None or translate:
        return
    (own,) = [trajectory for trajectory in run.own_record(tmp_path) if trajectory.header.relation is None]
    check_same(own, main)
    seen[client.name]["own"] = "equal"


@each(tuple(client for client in CLIENTS if client.sub_agents))
def test_a_sub_agent_has_a_parent(
    config: Config, tmp_path: Path, run: Run, provider: ScriptedProvider, client: RealClient, seen: Seen
) -> None:
    run.job(provider, "agents")
    relations = {trajectory.header.relation: trajectory for trajectory in stored(config)}
    main, child = relations[None], relations[Relation.DELEGATE]
    assert child.header.parent_id == main.header.id
    seen[client.name]["agents"] = "has a parent"
    own = {trajectory.header.relation: trajectory for trajectory in run.own_record(tmp_path)}
    check_same(own[None], main)
    if client.name == "codex":  # its program ends before the sub-agent does
        seen[client.name]["agents"] += ", its end is missed"
        return
    check_same(own[Relation.DELEGATE], child)


@each(WITH_TOOLS)
def test_broken_arguments_are_recorded_as_the_model_wrote_them(
    config: Config, run: Run, provider: ScriptedProvider, client: RealClient, seen: Seen
) -> None:
    run.job(provider, "broken")
    tasks = [trajectory for trajectory in stored(config) if trajectory.header.relation is not Relation.SIDE]
    steps = [step for trajectory in tasks for step in trajectory.steps]
    calls = [call for step in steps if step.kind is StepKind.MODEL for call in step.message.tool_calls]
    (broken,) = [call for call in calls if call.error is not None]
    assert broken.arguments.endswith('"echo hello", ') and tasks[-1].answer == "All done."
    results = [step.message for step in steps if step.kind is StepKind.TOOL]
    ran = any(
        message.tool_call_id == broken.id and "hello" in message.content.splitlines() for message in results
    )
    if len(tasks) > 1:
        seen[client.name]["broken"] = "dropped, a fork"
    else:
        seen[client.name]["broken"] = "repaired" if ran else "an error back"


@each(CLIENTS)
def test_a_busy_provider_is_an_attempt_of_the_call(
    config: Config, tmp_path: Path, run: Run, provider: ScriptedProvider, client: RealClient, seen: Seen
) -> None:
    if client.name == "aider":
        pytest.skip("it has no tools, by which the script tells its calls apart")
    run.job(provider, "busy")
    (main,) = [trajectory for trajectory in stored(config) if trajectory.header.relation is None]
    first = next(step.call for step in main.steps if step.call)
    assert first.attempts == 2 and main.answer == "All done."
    seen[client.name]["busy"] = "asks again"
    if client.sessions is not None:
        (own,) = [trajectory for trajectory in run.own_record(tmp_path) if trajectory.header.relation is None]
        check_same(own, main)


@each(tuple(client for client in WITH_TOOLS if client.name != "mini-swe-agent"))
def test_a_cut_stream_is_recorded_as_cut(
    config: Config, tmp_path: Path, run: Run, provider: ScriptedProvider, client: RealClient, seen: Seen
) -> None:
    run.job(provider, "cut")
    answers = [
        step
        for trajectory in stored(config)
        for step in trajectory.steps
        if step.call and step.message.content
    ]
    (cut,) = [step for step in answers if step.call and step.call.finish_reason == INTERRUPTED]
    assert "I will look at it now.".startswith(cut.message.content.rstrip())
    assert any(step.message.content == "All done." for step in answers)
    (holder,) = [one for one in stored(config) if cut.message in one.messages and one.turns]
    resumed = holder.steps[-1].message != cut.message
    seen[client.name]["cut"] = "resumes behind the stump" if resumed else "asks again"
    if client.sessions is not None:
        own = [step for one in run.own_record(tmp_path) for step in one.steps if step.call]
        assert "All done." in [step.message.content for step in own]
        whole = [step for step in own if step.call and step.call.finish_reason != INTERRUPTED]
        assert all(step.message.content != cut.message.content for step in whole), "a stump is no answer"


@each(tuple(client for client in CLIENTS if client.name in COMPACTIONS))
def test_after_a_compaction_a_trajectory_of_its_own_goes_on(
    config: Config, run: Run, provider: ScriptedProvider, client: RealClient, seen: Seen
) -> None:
    prompts = [("Please work. JOB-compact",)]
    if client.name == "pi":  # which has nothing to summarise in what it keeps anyway
        settings = run.user / ".pi" / "agent" / "settings.json"
        settings.parent.mkdir(parents=True)
        settings.write_text('{"compaction": {"keepRecentTokens": 10}}')
    if client.name == "claude-code":
        prompts += [("/compact", "-c"), ("Go on. JOB-compact", "-c")]
    for prompt, *words in prompts:
        done = run.start(provider.base_url, "custom/model-1", prompt, *words)
        assert "recorded: " in done.stderr, done.stdout + done.stderr
    trajectories = stored(config)
    by_id = {trajectory.header.id: trajectory for trajectory in trajectories}
    (summary,) = [one for one in trajectories if one.answer == SUMMARY]
    before, *_, after = [one for one in trajectories if one.header.relation is not Relation.SIDE]
    assert before.header.relation is None and after.header.relation is Relation.CONTINUED
    assert summary.turns == 1 and summary.header.relation in (Relation.SIDE, Relation.CONTINUED)
    assert summary.header.parent_id == before.header.id
    origin = after
    while origin.header.parent_id is not None:
        origin = by_id[origin.header.parent_id]
    assert origin is before and after.turns == 1 and after.answer == "All done."
    shown = [step.message.content for step in after.steps if step.kind is StepKind.INPUT]
    assert any(SUMMARY in text for text in shown)
    assert len({trajectory.header.session_id for trajectory in trajectories}) == 1
    seen[client.name]["compact"] = COMPACTIONS[client.name]


@each(tuple(client for client in CLIENTS if client.name == "aider"))
def test_an_agent_without_tools(
    config: Config, run: Run, provider: ScriptedProvider, client: RealClient, seen: Seen
) -> None:
    run.job(provider, "none")
    (main,) = [trajectory for trajectory in stored(config) if trajectory.header.relation is None]
    assert main.answer == "All done." and main.header.metadata["agent"] == "aider"
    assert "Please work. JOB-none" in question_of(main)
    seen[client.name]["tool"] = "has none"


@each(tuple(client for client in CLIENTS if client.name in ("claude-code", "pi")))
def test_in_front_of_our_own_engine(
    config: Config, tmp_path: Path, run: Run, client: RealClient, bundled_home: Path
) -> None:
    """The bundled model answers what it can; its calls, tokens and tree are recorded truly."""
    model = "hermes/smollm2"
    engine = launch(model, tmp_path / "engine", "--no-token", HERMES_HOME=str(bundled_home))
    words = (
        ("--bare", "--tools", "Bash", "--system-prompt", "You are an agent.") if client.name != "pi" else ()
    )
    try:
        done = run.start(
            f"{engine.url}/v1",
            model,
            "Say hello.",
            *words,
            passed_on=False,
            CLAUDE_CODE_MAX_OUTPUT_TOKENS="60",
        )
        sampled = engine.metric("sampled_tokens_total")
    finally:
        engine.kill()
    assert "recorded: " in done.stderr, done.stderr
    calls = [step.call for trajectory in stored(config) for step in trajectory.steps if step.call]
    assert calls and {call.model for call in calls} == {model}
    assert sum(call.usage.completion for call in calls) == sampled
    assert all(call.usage.prompt > 100 and call.cost_usd == 0 for call in calls)


@each(tuple(client for client in CLIENTS if client.name == "claude-code"))
def test_a_taught_policy_calls_a_tool_of_the_agent(
    config: Config, tmp_path: Path, run: Run, client: RealClient, bundled_home: Path
) -> None:
    """What the agent sends is recorded once; the bundled model learns to answer it by a call of its shell."""
    model, policy = "hermes/smollm2", "policy:caller"
    asked = ("Make the file.", "--bare", "--tools", "Bash", "--system-prompt", "You are an agent.")
    made = run.user / "made-by-the-policy"
    call = {"name": "Bash", "arguments": {"command": f"touch {made.name}", "description": "Makes it"}}
    engine = launch(model, tmp_path / "engine", "--no-token", HERMES_HOME=str(bundled_home))
    settings = {"passed_on": False, "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "60"}

    def record(name: str) -> None:
        done = run.start(f"{engine.url}/v1", name, *asked, "--max-turns", "2", **settings)  # type: ignore[arg-type]
        assert "recorded: " in done.stderr, done.stdout + done.stderr

    try:
        record(model)
        with Reader(db_path(config.home)) as reader:
            (row,) = reader.summaries()
            sent = reader.record(reader.get(row.id)).inputs
        messages, tools = sent[min(sent)]
        request = chat_body(model, ChatRequest(messages, tools, Sampling()), Dialect())
        prompt = prompt_ids(engine, model, request["messages"], tools=request["tools"])
        answer = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        lesson = (prompt, encode(bundled_home / "models" / "hermes--smollm2", answer))
        teach(engine, model, [lesson], "taught", alias=policy, learning_rate=1e-3, loss_at_most=0.5)
        assert not made.exists()
        record(policy)
    finally:
        engine.kill()
    assert made.exists(), "the agent ran the command"
    trajectory = stored(config)[-1]
    first = next(step for step in trajectory.steps if step.kind is StepKind.MODEL)
    (called,) = first.message.tool_calls
    assert called.name == "Bash" and called.parsed() == call["arguments"]
    assert first.call is not None and first.call.model.endswith(policy)
    result = next(step.message for step in trajectory.steps if step.kind is StepKind.TOOL)
    assert result.tool_call_id == called.id
