"""The usual faults × the commands: each has a sentence that names it, a fix and an exit code; no traceback.

The commands run in this process. Files: `folder` is a directory, `broken.*` are malformed, `binary.txt` is no
text, `tasks.jsonl` is good; what is called `missing` or `nothing` does not exist. Nothing listens on port 9.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from hermes.cli.main import cli
from hermes.errors import HermesError
from tests.cli.leaves import leaf_commands

ABSENT = "http://127.0.0.1:9"
BATCH = "batch --dataset-file tasks.jsonl --run-name r"
TABLE = [
    # command line | exit code | part of the sentence | part of the fix
    ("-q x --model nowhere/m", 2, "unknown provider 'nowhere'", "known providers: hermes"),
    ("-q x --model smollm2", 2, "names no provider", "did you mean hermes/smollm2?"),
    ("-q x --model openrouter/m", 2, "OPENROUTER_API_KEY is not set", "hermes config set OPENROUTER_API_KEY"),
    ("-q x --base-url nonsense", 2, "--base-url: expected an address", "http://"),
    (f"-q x --base-url {ABSENT}/v1", 1, f"connection refused at {ABSENT}/v1", "Start it"),
    ("-q x --toolsets terminl", 2, "no such toolset: 'terminl'", "did you mean terminal?"),
    ("-q x --sandbox jail", 2, "there is no sandbox 'jail'", "plug-ins"),
    ("-q x --workspace missing", 2, "is not a directory", "create it"),
    ("-q x --fragment missing.txt", 2, "File 'missing.txt' does not exist", "hermes --help"),
    ("-q x --fragment folder", 2, "File 'folder' is a directory", "hermes --help"),
    ("-q x --fragment binary.txt", 2, "binary.txt is not UTF-8 text", "convert it"),
    ("-q x --template nothing", 2, "there is no template 'nothing'", "templates/nothing.yaml"),
    ("-q x --param a=b", 2, "--param needs a template", "--template NAME"),
    ("-q x --schema missing.json", 2, "cannot read the schema missing.json: No such file", "check the path"),
    ("-q x --schema broken.json", 2, "broken.json is no JSON schema", "JSON schema"),
    ("-q x --schema folder", 2, "cannot read the schema folder: Is a directory", "check the path"),
    ("-q x --resume nothing", 2, "'nothing' matches no trajectory", "hermes trajectories list"),
    ("-q x --continue", 2, "there is no conversation to continue", "hermes"),
    ("-q x --continue --resume last", 2, "--continue and --resume exclude each other", "choose one"),
    ("-q x --max-turns 0", 2, "0 is not in the range", "hermes --help"),
    ("-q x --nonsense", 2, "No such option '--nonsense'", "hermes --help"),
    ("--json", 2, "the question is empty", "hermes -q"),
    ("what", 2, "no such command 'what'", "hermes -q 'what'"),
    ("serve --port 1", 2, "engine serve or env serve", "hermes -q 'serve --port 1'"),
    ("batch", 2, "--dataset-file is missing", "hermes batch --help"),
    ("batch --dataset-file tasks.jsonl", 2, "--run-name is missing", "hermes batch --help"),
    ("batch --dataset-file missing.jsonl --run-name r", 2, "no dataset file missing.jsonl", "--dataset-file"),
    ("batch --dataset-file folder --run-name r", 2, "folder: unknown kind of dataset", ".jsonl"),
    ("batch --dataset-file broken.json --run-name r", 2, "broken.json is not JSON", "array of rows"),
    ("batch --dataset-file broken.parquet --run-name r", 2, "cannot read broken.parquet", "Parquet"),
    ("batch --dataset-file empty.jsonl --run-name r", 2, "empty.jsonl has no usable row", "'prompt'"),
    ("batch --dataset-file tasks.jsonl --run-name a/b", 2, "'a/b' cannot name a run", "letters"),
    (f"{BATCH} --reward missing.py:reward", 2, "there is no file missing.py", "file.py:function"),
    (f"{BATCH} --reward syntax.py:reward", 2, "syntax.py:1 fails to load", "python"),
    (f"{BATCH} --reward good.py:nothing", 2, "no function 'nothing'", "it has: reward"),
    (f"{BATCH} --reward good.py", 2, "no function is named", "good.py:FUNCTION"),
    (f"{BATCH} --reward two.py:reward", 2, "reward(answer, expected) is called with one", "def reward(ctx)"),
    (f"{BATCH} --config broken.yaml", 2, "broken.yaml:2:1", "repair it"),
    (f"{BATCH} --config missing.yaml", 2, "File 'missing.yaml' does not exist", "hermes batch --help"),
    (f"{BATCH} --config folder", 2, "File 'folder' is a directory", "hermes batch --help"),
    (f"{BATCH} --prefill-messages-file folder", 2, "File 'folder' is a directory", "hermes batch --help"),
    (f"{BATCH} --prefill-messages-file broken.json", 2, "is not a list of messages", '"role"'),
    (f"{BATCH} --toolsets terminl", 2, "no such toolset: 'terminl'", "did you mean terminal?"),
    (f"{BATCH} --distribution nothing", 2, "no such distribution: 'nothing'", "one of: default"),
    (f"{BATCH} --num-workers 0", 2, "0 is not in the range", "hermes batch --help"),
    (f"{BATCH} --resume", 2, "there is no run in data/r to resume", "leave out --resume"),
    (f"{BATCH} --model nowhere/m", 2, "unknown provider 'nowhere'", "known providers"),
    (f"{BATCH} --base-url {ABSENT}/v1", 1, "connection refused", "Start it"),
    (f"{BATCH} --api-key sk-1", 2, "a key on the command line", "hermes config set"),
    ("batch status nothing", 2, "there is no run 'nothing' in data", "--output-dir"),
    ("batch delete nothing", 2, "there is no run 'nothing' in data", "--output-dir"),
    ("bench --dataset-file missing.jsonl --models a/b", 2, "no dataset file missing.jsonl", "--dataset-file"),
    ("bench --dataset-file tasks.jsonl --models a/b,a/b", 2, "--models names a/b twice", "provider/name"),
    ("bench --dataset-file tasks.jsonl --models nowhere/m", 2, "unknown provider 'nowhere'", "known"),
    ("compress --config broken.yaml", 2, "broken.yaml:2:1", "repair it"),
    ("compress --config folder", 2, "File 'folder' is a directory", "hermes compress --help"),
    ("compress --target-max-tokens no", 2, "'no' is not a valid integer", "hermes compress --help"),
    ("completion tcsh", 2, "'tcsh' is not one of 'bash'", "hermes completion --help"),
    ("config get nothing", 2, "unknown setting 'nothing'", "hermes config show"),
    ("config set nothing 1", 2, "unknown setting 'nothing'", "hermes config show"),
    ("config set sandbox.memory_mb little", 2, "expected a whole number", "nothing was changed"),
    ("config set providers.vllm.parser hermse", 2, "expected 'hermes', 'qwen'", "did you mean hermes?"),
    ("config set sampling.reasoning_effort hgih", 2, "expected 'none', 'minimal'", "did you mean high"),
    ("config set web.search_backend barve", 2, "expected 'auto', 'searxng'", "did you mean brave?"),
    ("config set web.searxng_url nowhere", 2, "expected an address such as", "nothing was changed"),
    ("config set sandbox.backend dokcer", 2, "there are: auto, local, bubblewrap", "did you mean docker?"),
    ("config set sandbox.network_allow 10.0.0.x", 2, "'10.0.0.x' is not an IPv4", "Write addresses as"),
    ("config set toolsets web,flie", 2, "no such toolset: 'flie'; there are:", "did you mean file?"),
    ("config set providers.vllm.toolsets flie", 2, "no such toolset: 'flie'", "did you mean file?"),
    ("config set distributions.mine.flie 50", 2, "no such toolset: 'flie'", "did you mean file?"),
    ("config set model", 2, "no value for model", "hermes config set model VALUE"),
    ("config unset nothing", 2, "unknown setting 'nothing'", "hermes config show"),
    ("config edit", 2, "an editor needs a terminal", "hermes config set KEY VALUE"),
    (f"engine models --service {ABSENT}", 1, f"no engine answers at {ABSENT}", "hermes engine serve"),
    ("engine fleet --folder adapters", 2, "Missing option '--base-url'", "hermes engine fleet --help"),
    ("engine import folder", 2, "'folder' is not a PEFT adapter", "adapter_config.json"),
    ("engine serve --port 99999", 2, "99999 is not in the range", "hermes engine serve --help"),
    ("env new a/b", 2, "'a/b' is not a valid name", "letters"),
    ("export", 2, "--output is missing", "--preview"),
    ("export --output folder", 2, "does not say which kind of file", ".jsonl"),
    ("export --output out.jsonl --format nothing", 2, "no format 'nothing'", "one of: sharegpt"),
    ("export --output out.jsonl --since yesterday", 2, "'yesterday' is not a time", "7d"),
    ("export --output out.jsonl --where nonsense", 2, "'nonsense' is not a condition", "FIELD=VALUE"),
    ("export --output out.jsonl --decontaminate missing.jsonl", 2, "does not exist", "hermes export --help"),
    ("export --output out.jsonl --recipe nothing", 2, "no recipe 'nothing'", "axolotl"),
    ("import missing.jsonl", 2, "no such file: missing.jsonl", "JSONL"),
    ("import folder", 2, "folder holds no data files", ".jsonl"),
    ("import broken.parquet", 2, "cannot read broken.parquet", "Parquet"),
    ("memory show nothing", 2, "'nothing' matches no fact", "hermes memory list"),
    ("memory remove nothing", 2, "'nothing' matches no fact", "hermes memory list"),
    ("memory add", 2, "Missing argument 'TEXT'", "hermes memory add --help"),
    ("models extra", 2, "unexpected extra argument", "hermes models --help"),
    ("policy show nothing", 2, "'nothing' matches no policy", "hermes policy list"),
    ("policy compare a b", 2, "'a' matches no policy", "hermes policy list"),
    ("policy delete nothing", 2, "'nothing' matches no policy", "hermes policy list"),
    ("policy promote nothing", 2, "'nothing' matches no policy", "hermes policy list"),
    ("--model gpt-4o -q hi", 2, "'gpt-4o' names no provider", "did you mean openai/gpt-4o?"),
    ("--model openai:gpt-4o -q hi", 2, "names no provider", "did you mean openai/gpt-4o?"),
    ("--model claude-opus -q hi", 2, "names no provider", "did you mean openrouter/anthropic/claude-opus?"),
    ("config set OPENAI_KEY x", 2, "nothing reads OPENAI_KEY", "did you mean OPENAI_API_KEY?"),
    ("policy rollback", 2, "no policy was promoted yet", "hermes improve"),
    ("rate nothing good", 2, "'nothing' matches no trajectory", "hermes trajectories list"),
    ("rate last good", 2, "nothing has been recorded yet", "hermes -q"),
    ("rate list nothing", 2, "'nothing' matches no trajectory", "hermes trajectories list"),
    ("rate undo nothing", 2, "there is no rating", "hermes rate list"),
    ("rl config", 2, "no environment is selected", "hermes rl config --env NAME"),
    ("engine serve --model hermes/smolm2", 2, "no bundled model 'hermes/smolm2'", "hermes/smollm2"),
    ("rl start --env calculator --model hermes/smolm2", 2, "no bundled model", "hermes/smollm2"),
    ("rl start", 2, "no environment is selected", "hermes rl config --env NAME"),
    ("rl start --config missing.yaml", 2, "File 'missing.yaml' does not exist", "hermes rl start --help"),
    ("rl status nothing", 2, "there is no run 'nothing'", "hermes rl status --all"),
    ("rl weights nothing", 2, "there is no run 'nothing'", "hermes rl status --all"),
    ("store check", 2, "there is no database", "hermes -q"),
    ("store compact", 2, "there is no database", "hermes -q"),
    ("store backup folder", 2, "there is no database", "hermes -q"),
    ("store salvage new.db", 2, "there is no database", "hermes -q"),
    ("train sft missing.jsonl", 2, "'missing.jsonl' does not exist", "hermes train sft --help"),
    ("train sft tasks.jsonl --rank 0", 2, "0 is not in the range", "hermes train sft --help"),
    ("train sft tasks.jsonl --service nonsense", 2, "'nonsense' is not an address", "http://127.0.0.1"),
    (f"train sft tasks.jsonl --service {ABSENT}", 1, f"no engine answers at {ABSENT}", "hermes engine serve"),
    ("trajectories show nothing", 2, "'nothing' matches no trajectory", "hermes trajectories list"),
    ("trajectories show", 2, "nothing has been recorded yet", "hermes -q"),
    ("trajectories diff nothing last", 2, "'nothing' matches no trajectory", "hermes trajectories list"),
    ("trajectories list --since yesterday", 2, "'yesterday' is not a time", "7d"),
    ("trajectories list --limit 0", 2, "0 is not in the range", "hermes trajectories list --help"),
    ("trajectories list --before nothing", 2, "'nothing' matches no trajectory", "hermes trajectories list"),
    ("trajectories delete", 2, "nothing is selected", "--source chat"),
    ("trajectories delete nothing", 2, "'nothing' matches no trajectory", "hermes trajectories list"),
    ("trajectories delete last --source chat", 2, "ids and filters exclude each other", "choose one"),
    ("trajectories score --reward missing.py:reward", 2, "there is no file missing.py", "file.py:function"),
    ("trajectories score --reward good.py:nothing", 2, "no function 'nothing'", "it has: reward"),
    ("api --port 99999", 2, "99999 is not in the range", "hermes api --help"),
    ("api --host 0.0.0.0", 2, "refusing to listen on 0.0.0.0 without a token", "HERMES_API_TOKEN"),
    ("api --state-dir good.py", 2, "Directory 'good.py' is a file", "hermes api --help"),
    ("batch status first extra", 2, "unexpected extra argument", "hermes batch status --help"),
    ("compress", 2, "no input is named", "hermes compress FILE"),
    ("compress missing.jsonl", 2, "'missing.jsonl' is no file, no folder", "name one of these"),
    ("config path extra", 2, "unexpected extra argument", "hermes config path --help"),
    ("config show key extra", 2, "unexpected extra argument", "hermes config show --help"),
    ("doctor extra", 2, "unexpected extra argument", "hermes doctor --help"),
    (f"engine adapters --service {ABSENT}", 1, f"no engine answers at {ABSENT}", "hermes engine serve"),
    ("engine bench --device gpuu", 2, "'gpuu' is not one of", "hermes engine bench --help"),
    (
        "engine serve --device cuda:1",
        2,
        "the first visible GPU is used, not 'cuda:1'",
        "CUDA_VISIBLE_DEVICES=1",
    ),
    ("engine serve --device gpuu", 2, "'gpuu' is not one of", "hermes engine serve --help"),
    ("env check missing.py", 2, "there is no environment file missing.py", "hermes env list"),
    ("env check calculater", 2, "there is no environment 'calculater'", "did you mean calculator?"),
    ("env clean extra", 2, "unexpected extra argument", "hermes env clean --help"),
    ("env openenv calculater", 2, "there is no environment 'calculater'", "did you mean calculator?"),
    ("env debug calculater", 2, "there is no environment 'calculater'", "did you mean calculator?"),
    ("env evaluate calculater", 2, "there is no environment 'calculater'", "did you mean calculator?"),
    ("env list extra", 2, "there is no folder extra", "environment files"),
    ("env process", 2, "Missing argument 'ENVIRONMENT'", "hermes env process --help"),
    ("env process calculater", 2, "there is no environment 'calculater'", "did you mean calculator?"),
    ("env process calculator --env.group_siz 3", 2, "no flag --env.group_siz", "--env.group_size"),
    ("env process calculator --env.group_size many", 2, "--env.group_size is 'many'", "--help"),
    ("env serve calculater", 2, "there is no environment 'calculater'", "did you mean calculator?"),
    ("env verifiers install --version", 2, "'--version' requires an argument", "requires"),
    ("improve", 2, "there are no new ratings to learn from", "hermes rate queue"),
    ("improve --method nothing", 2, "'nothing' is not one of 'dpo'", "hermes improve --help"),
    ("memory list fact extra", 2, "unexpected extra argument", "hermes memory list --help"),
    ("policy list extra", 2, "unexpected extra argument", "hermes policy list --help"),
    ("policy serve nothing", 2, "'nothing' matches no policy", "hermes policy list"),
    ("quickstart nothing", 2, "'nothing' is not 'feedback'", "hermes quickstart --help"),
    ("rate auto", 2, "name one rater", "hermes rate auto --help"),
    ("rate auto --reward missing.py:reward", 2, "there is no file missing.py", "file.py:function"),
    ("rate queue", 2, "the queue 'default' is empty", "hermes -q"),
    ("rate queue --mode nothing", 2, "'nothing' is not one of 'thumb'", "hermes rate queue --help"),
    ("rate stats queue extra", 2, "unexpected extra argument", "hermes rate stats --help"),
    (
        "record serve --host 0.0.0.0",
        2,
        "refusing to listen on 0.0.0.0 without a token",
        "HERMES_RECORD_TOKEN",
    ),
    ("reward score nothing last", 2, "there is no reward model called 'nothing'", "hermes train reward"),
    ("reward serve nothing", 2, "there is no reward model called 'nothing'", "hermes train reward"),
    ("rl agent", 2, "no task", "hermes rl"),
    ("rl alerts nothing", 2, "there is no run 'nothing'", "hermes web"),
    ("rl check", 2, "no agent is named", "claude -p {prompt}"),
    ("rl check --agent nothing", 2, "--prompts is missing", "FILE"),
    ("rl config --env calculater", 2, "there is no environment 'calculater'", "did you mean calculator?"),
    ("rl diff nothing other", 2, "there is no run 'nothing'", "hermes web"),
    ("rl doctor nothing", 2, "there is no run 'nothing'", "hermes rl status --all"),
    ("rl plan --gpu nothing", 2, "there are no figures for the GPU 'nothing'", "h200"),
    ("rl plan --model nowhere/model", 2, "the size of 'nowhere/model' is unknown", "Qwen/Qwen3-8B"),
    ("rl preflight", 2, "no environment is selected", "hermes rl config --env NAME"),
    ("rl preflight --env calculater", 2, "there is no environment 'calculater'", "did you mean calculator?"),
    ("rl results nothing", 2, "there is no run 'nothing'", "hermes rl status --all"),
    ("rl resume nothing", 2, "there is no run 'nothing'", "hermes rl status --all"),
    ("rl serve nothing", 2, "there is no run 'nothing'", "hermes rl status --all"),
    ("rl stop nothing", 2, "there is no run 'nothing'", "hermes rl status --all"),
    ("rl sweep --env calculater", 2, "there is no environment 'calculater'", "did you mean calculator?"),
    ("rl sweep --env calculator --set nothing=1", 2, "there is no field 'nothing'", "hermes rl config"),
    ("rl test --env calculater", 2, "there is no environment 'calculater'", "did you mean calculator?"),
    ("skills browse --nothing", 2, "No such option", "hermes skills browse --help"),
    ("skills trial nothing --tasks tasks.jsonl --reward good.py:reward", 2, "no skill 'nothing'", "browse"),
    ("skills check nothing", 2, "there is no skill 'nothing'", "hermes skills browse"),
    ("skills install missing", 2, "'missing' is neither a bundled skill", "hermes skills browse"),
    ("skills learn nothing", 2, "'nothing' matches no trajectory", "hermes trajectories list"),
    ("skills view axolot", 2, "there is no skill 'axolot'", "did you mean axolotl?"),
    ("tools extra", 2, "unexpected extra argument", "hermes tools --help"),
    ("train dpo missing.jsonl", 2, "'missing.jsonl' does not exist", "hermes train dpo --help"),
    ("train grpo --config broken.yaml", 2, "broken.yaml:2:1", "repair it"),
    (f"train grpo --service {ABSENT}", 1, f"no engine answers at {ABSENT}", "hermes engine serve"),
    ("train kto missing.jsonl", 2, "'missing.jsonl' does not exist", "hermes train kto --help"),
    ("train ppo --epochs 0", 2, "0 is not in the range", "hermes train ppo --help"),
    ("train reward missing.jsonl", 2, "'missing.jsonl' does not exist", "hermes train reward --help"),
    ("train rlhf", 2, "Missing option '--reward-model'", "hermes train rlhf --help"),
    ("trajectories list --source chta", 2, "--source: no trajectory has 'chta'", "did you mean chat?"),
    ("trajectories redact --since yesterday", 2, "'yesterday' is not a time", "7d"),
    ("trajectories search", 2, "Missing argument 'WORDS...'", "hermes trajectories search --help"),
    ("trajectories stats --outcome complted", 2, "has 'complted'", "did you mean completed?"),
    ("bug-report --output folder", 2, "is a directory", "hermes bug-report --help"),
    ("web --host 0.0.0.0", 2, "refusing to listen on 0.0.0.0 without a token", "HERMES_WEB_TOKEN"),
    ("web --port 99999", 2, "99999 is not in the range", "hermes web --help"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    for name in ("EDITOR", "VISUAL", "OPENROUTER_API_KEY", "TINKER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "folder").mkdir()
    for name in ("broken.json", "broken.jsonl", "broken.parquet"):
        (tmp_path / name).write_text("{not json")
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "Compute 1 + 1", "expected": "2"}\n')
    (tmp_path / "good.py").write_text("def reward(ctx):\n    return 1\n")
    (tmp_path / "two.py").write_text("def reward(answer, expected):\n    return 1\n")
    (tmp_path / "syntax.py").write_text("def reward(\n")
    return tmp_path


def refusal(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, sentence and fix; a failure of another kind is raised."""
    done = CliRunner().invoke(cli, arguments, prog_name="hermes", input="")
    error = done.exception
    if isinstance(error, HermesError):
        assert error.hint, f"{error.message!r} has no fix"
        return error.exit_code, error.message, error.hint
    if error is not None and not isinstance(error, SystemExit):
        raise error
    return done.exit_code, done.output, done.output


def test_every_command_is_in_the_table() -> None:
    lines = [row[0] for row in TABLE]
    names = [name for name, _ in leaf_commands(cli)]
    assert len(names) > 80
    assert [name for name in names if not any(f"{line} ".startswith(f"{name} ") for line in lines)] == []


@pytest.mark.parametrize(("line", "exit_code", "sentence", "fix"), TABLE, ids=[row[0] for row in TABLE])
def test_a_fault_is_named_with_its_fix(
    place: Path, line: str, exit_code: int, sentence: str, fix: str
) -> None:
    code, message, hint = refusal(line.split())
    assert sentence in message
    assert fix in hint
    assert code == exit_code


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize(
    "line",
    ["batch --dataset-file tasks.jsonl --run-name r", "import tasks.jsonl", "-q x --fragment tasks.jsonl"],
)
def test_a_file_without_permission_is_named(place: Path, line: str) -> None:
    (place / "tasks.jsonl").chmod(0)
    code, message, _ = refusal(line.split())
    assert code in (1, 2)
    assert "tasks.jsonl" in message and "ermission" in message


@pytest.mark.parametrize("line", ["config show", "trajectories list", "-q x", "store check"])
def test_a_home_that_is_a_file_is_named(place: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setenv("HERMES_HOME", str(place / "good.py"))
    code, message, hint = refusal(line.split())
    assert code in (1, 2)
    assert "good.py" in message
    assert hint


@pytest.mark.parametrize("line", ["config show", "-q x", "batch list", "trajectories list"])
def test_a_malformed_configuration_is_named_with_its_line(place: Path, line: str) -> None:
    (place / "home").mkdir()
    (place / "home" / "config.yaml").write_text("model: [\n")
    if line == "batch list":
        assert refusal(line.split())[0] == 0, "it reads folders only"
        return
    code, message, hint = refusal(line.split())
    assert code == 2
    assert "config.yaml:2:1" in message
    assert "hermes config edit" in hint
