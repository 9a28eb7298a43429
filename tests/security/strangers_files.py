"""Readers of strangers' files, a sound sample of each, kinds of damage, and a child to read them in."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import random
import re
import shutil
import signal
import struct
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, Never

import click

from hermes.batch.options import BatchOptions
from hermes.batch.overview import overview
from hermes.batch.spec import RunSpec
from hermes.batch.start import read_prefill
from hermes.batch.tasks import read_dataset
from hermes.cli.batch.command import _read_flags_file, batch
from hermes.cli.chat.inputs import compose
from hermes.cli.chat.options import read_schema
from hermes.cli.chat.query import schema_problem
from hermes.cli.chat.template_file import load_template
from hermes.cli.compress.command import read_compress_file
from hermes.cli.model_options import parse_model
from hermes.cli.train.reward import _examples
from hermes.config import env_file
from hermes.config.load import load
from hermes.core import Message
from hermes.data.compress.counting.tokenizer import find_tokenizer
from hermes.data.compress.counting.tokens import Counter as TokenCounter
from hermes.data.compress.run.inputs import file_items, find_files
from hermes.data.curate.base import read_eval_set
from hermes.data.importing import import_files
from hermes.engine.lora.adapter_tar import unpack
from hermes.envs.builtin.reward_function import check_rows
from hermes.envs.dataset import load_tasks
from hermes.envs.harbor.dockerfile import Host, read_dockerfile, read_recipe
from hermes.envs.harbor.reward import read_reward
from hermes.envs.harbor.task import read_task
from hermes.envs.harbor.trial import _read
from hermes.envs.modes import commandline
from hermes.envs.rewards.result import GraderError
from hermes.errors import HermesError, ToolError, UsageError
from hermes.models.local.gguf import GGUFError, read_gguf
from hermes.policies.text.improve import first_texts
from hermes.rl.config.run_file import read_run_file
from hermes.rl.model_shape import shape_of
from hermes.rl.run import RlRun, RunStatus, read_metrics
from hermes.rl.run_config import RunConfig
from hermes.skills.catalogue import list_skills, read_skill_file
from hermes.skills.drafts import drafts
from hermes.skills.source import read_source
from hermes.skills.trials import TrialResult, results, store_result
from hermes.store import Reader, Writer
from hermes.store.upkeep.maintain import check
from hermes.store.upkeep.salvage import salvage
from hermes.tools.datasets.files import MAX_BYTES, _parse_file
from hermes.training.checkpoints import StateFile
from hermes.training.preference.readout import ReadOut
from hermes.training.preference.reward_model import RewardModelSpec, read_spec, write_spec
from hermes.training.preference.sources import read_preference_files
from hermes.training.schedule import parameters_of
from hermes.training.start_weights import rank_of
from tests import records
from tests.data.sessions.clients import CLIENTS, copy_of
from tests.data.sessions.clients import imported as imported_session
from tests.envs.harbor.folders import write_task
from tests.rl.world import tiny_tokenizer
from tests.skills.conftest import skill_text

MEGABYTE = 1 << 20
_CPU_S = 2.0
"""Two, and as much again for a machine of half the speed."""
_MEMORY_BYTES = 500 << 20
ESCAPED = "escaped"


def config(path: Path) -> object:
    return load(environ={"HERMES_HOME": str(path.parent)})


def variables(path: Path) -> object:
    return env_file.parse(path.read_text(errors="surrogateescape"), str(path))


def skill(path: Path) -> object:
    return [entry.error.message for entry in list_skills(path.parents[2]).broken]


def dataset(path: Path) -> object:
    return read_dataset(str(path)).bad


def imported(path: Path) -> object:
    db = path.parent / "db" / "hermes.db"
    with Writer(db) as writer, Reader(db) as reader:
        return [str(problem) for problem in import_files([path], reader, writer).problems]


def coding_session(client: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        return [
            str(problem) for problem in imported_session(path.parent / "hermes.db", client, path).problems
        ]

    return read


def packed_session(path: Path) -> object:
    return coding_session("claude-code")(path)


def looked_at(path: Path) -> object:
    try:
        return asyncio.run(_parse_file(str(path), path.read_bytes()[: MAX_BYTES + 1], 0, 5)).rows
    except ToolError as error:
        raise HermesError(str(error)) from error
    except OSError as error:  # the sandbox reads it, and says so
        raise HermesError(str(error)) from error


def archive(path: Path) -> object:
    return sorted(read_source(path))


def adapter_tar(path: Path) -> object:
    folder = path.parent / "unpacked"
    folder.mkdir()
    unpack(path, folder, ["adapter_config.json", "adapter_model.safetensors"])
    return sorted(folder.iterdir())


def database(path: Path) -> object:
    with Reader(path) as reader:
        for trajectory in reader.trajectories():
            reader.record(trajectory)
    return check(path).problems


def gguf(path: Path) -> object:
    try:
        return [read().shape for read in read_gguf(path).tensors.values()]
    except GGUFError as error:  # its callers name the file and what to do
        raise HermesError(str(error)) from error


def weights(path: Path) -> object:
    import torch

    from hermes.engine.model.safetensors_reader import SafetensorsReader

    reader = SafetensorsReader(path.parent, str(path.parent), torch.float32, torch.device("cpu"))
    return reader.matrix("a")


def weights_index(path: Path) -> object:
    return weights(path)


def adapter(path: Path) -> object:
    from hermes.engine.lora.peft import _read

    return _read(path.parent)[0]


def preferences(path: Path) -> object:
    return read_preference_files([path])


def chosen(path: Path) -> object:
    from hermes.training.data.sft_examples import from_files

    class Read(Exception):
        """Rows of text are rendered by a model's tokenizer."""

    def renderer() -> Never:
        raise Read

    with suppress(Read):
        return list(from_files([path], renderer, Counter()))
    return []


def run_file(path: Path) -> object:
    return read_run_file(path)


def compress_file(path: Path) -> object:
    return read_compress_file(path)


def compress_input(path: Path) -> object:
    files = find_files(str(path))
    if files is None:
        raise UsageError("as the command says")
    return [item.broken for item in file_items(files, None, 100.0, 0)]


def template(path: Path) -> object:
    return load_template(path.parents[1], path.stem)


def env_tasks(path: Path) -> object:
    return load_tasks(str(path), "train", "prompt")


def env_config(path: Path) -> object:
    return commandline._read_yaml(path)


def proposals(path: Path) -> object:
    from hermes.policies.text.proposals import Guard, ListedProposals

    return ListedProposals.read(path, Guard.of([], {}), 0)


def eval_set(path: Path) -> object:
    return read_eval_set(path)


def tokenizer(path: Path) -> object:
    return TokenCounter(find_tokenizer(str(path.parent), path.parent))


def model_config(path: Path) -> object:
    from hermes.engine.model.config import read_stated_config

    try:
        read_stated_config(path.parent)
    except ValueError as error:  # its caller names the model
        raise HermesError(str(error)) from error
    return shape_of(str(path.parent)), parameters_of(str(path.parent))


def batch_run(path: Path) -> object:
    return overview(path.parent)


def batch_journal(path: Path) -> object:
    return overview(path.parents[1])


def rl_run(path: Path) -> object:
    run = RlRun(path.parents[2], path.parent.name)
    return run.config(), run.status(), StateFile(run.folder).state(), list(read_metrics(run.metrics_path))


def reward_model(path: Path) -> object:
    return read_spec(str(path), path.parent)


def question_part(path: Path) -> object:
    return compose("", [path], "")


def schema(path: Path) -> object:
    read = read_schema(str(path))
    assert read is not None
    return schema_problem('{"a": [[1]]}', read)


def skill_file(path: Path) -> object:
    [listed] = [each for each in list_skills(path.parents[2]).skills if each.directory == path.parent]
    return read_skill_file(listed, path.name)


def batch_flags(path: Path) -> object:
    return parse_model(BatchOptions, click.Context(batch), _read_flags_file(path), path)


def prefill(path: Path) -> object:
    return read_prefill(path)


def salvaged(path: Path) -> object:
    return salvage(path, path.parent / "rescued.db").lost


def scored_rows(path: Path) -> object:
    try:
        return list(_examples(load(environ={"HERMES_HOME": str(path.parent)}), [str(path)]))
    except HermesError as error:
        assert str(path) in error.message, error.message
        raise


def reward_tasks(path: Path) -> object:
    return check_rows(read_dataset(str(path)))


def adapter_rank(path: Path) -> object:
    return adapter(path), rank_of(path.parent)


def rows() -> list[dict[str, object]]:
    conversation = [{"role": "user", "content": "hello é"}, {"role": "assistant", "content": "hi"}]
    return [{"id": f"r{n}", "prompt": f"task {n}", "messages": conversation} for n in range(20)]


def sample_jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))


def sample_json(path: Path) -> None:
    path.write_text(json.dumps(rows()))


def sample_csv(path: Path) -> None:
    path.write_text("id,prompt\n" + "".join(f'r{n},"task, {n}"\n' for n in range(20)))


def sample_parquet(path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows()), path)


def sample_session(path: Path) -> None:
    lines = [
        {"type": "session", "id": "s"},
        {"type": "message", "message": {"role": "user", "content": "hi"}},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def sample_tar(path: Path) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name in ("SKILL.md", "scripts/a.py"):
            data = skill_text("a").encode() if name == "SKILL.md" else b"print(1)\n"
            info = tarfile.TarInfo(f"a/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def sample_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("SKILL.md", skill_text("a"))
        file.writestr("scripts/a.py", "print(1)\n" * 100)


def sample_adapter_tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            info = tarfile.TarInfo(name)
            info.size = 100
            tar.addfile(info, io.BytesIO(bytes(100)))


def sample_db(path: Path) -> None:
    with Writer(path) as writer:
        for number in range(20):
            records.record(writer, [Message.user(f"hello {number}"), Message.assistant("hi " * 500)])


def sample_gguf(path: Path) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
    header += text("general.name") + struct.pack("<I", 8) + text("x" * 50)
    header += text("tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("b") + text("c")
    header += text("weight") + struct.pack("<IQQIQ", 2, 4, 4, 0, 0)
    path.write_bytes(header.ljust(-(-len(header) // 32) * 32, b"\0") + bytes(64))


def sample_safetensors(path: Path) -> None:
    header = json.dumps({"model.a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))


def sample_index(path: Path) -> None:
    path.write_text(json.dumps({"metadata": {}, "weight_map": {"model.a": "model.safetensors"}}))
    sample_safetensors(path.parent / "model.safetensors")


def sample_adapter(path: Path) -> None:
    sample_safetensors(path)
    (path.parent / "adapter_config.json").write_text('{"r": 4}')


def sample_adapter_config(path: Path) -> None:
    path.write_text('{"r": 4, "peft_type": "LORA"}')
    sample_safetensors(path.parent / "adapter_model.safetensors")


def sample_pairs(path: Path) -> None:
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    path.write_text("".join(json.dumps(pair) + "\n" for _ in range(20)))


def sample_ids(path: Path) -> None:
    row = {"input_ids": [1, 2, 3], "mask": [0, 1, 1]}
    path.write_text("".join(json.dumps(row) + "\n" for _ in range(20)))


def sample_text(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text) and None


def sample_skill_file(path: Path) -> None:
    (path.parent / "SKILL.md").write_text(skill_text("a"))
    path.write_text("notes\n")


def sample_tokenizer(path: Path) -> None:
    tiny_tokenizer(path.parent)


def sample_model_config(path: Path) -> None:
    from transformers import LlamaConfig

    LlamaConfig(vocab_size=32, hidden_size=64, num_hidden_layers=1).save_pretrained(path.parent)


def sample_journal(path: Path) -> None:
    sample_batch(path)
    entry = {"sample": "s", "state": "completed", "reason": None, "row": {"a": 1}}
    path.write_text(json.dumps(entry) + "\n")


def sample_batch(path: Path) -> None:
    folder = path.parent if path.name == "run.json" else path.parents[1]
    spec = RunSpec("r", "tasks.jsonl", "d", "m", settings={"a": 1})
    (folder / "journal").mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(spec.to_json()))


def sample_reward_model(path: Path) -> None:
    write_spec(path.parent, RewardModelSpec("m", ("tinker://a",), ReadOut()))


def sample_run(path: Path) -> None:
    run = RlRun(path.parents[2], path.parent.name)
    RunConfig.parse({"env": {}, "run": {"model": "m"}}, "test").write(run.folder)
    run.write_status(RunStatus())
    kept = {"kept": [[2, "a", "b"]], "best": None}
    (run.folder / "training.json").write_text(json.dumps({"format": 1, "kind": "rl", "settings": {}, **kept}))
    run.metrics_path.write_text('{"step": 1, "loss": 0.5}\n')


def sample_session_of(client: str) -> Callable[[Path], None]:
    def sample(path: Path) -> None:
        copied = copy_of(client, path.parent / "copy")
        source = copied if copied.is_file() else sorted(copied.glob("*.jsonl"))[0]
        shutil.copy(source, path)

    return sample


def sample_packed_session(path: Path) -> None:
    import zstandard

    sample_session_of("claude-code")(path.with_name("s.jsonl"))
    path.write_bytes(zstandard.ZstdCompressor().compress(path.with_name("s.jsonl").read_bytes()))
    path.with_name("s.jsonl").unlink()


def sample_arrow(path: Path) -> None:
    import pyarrow

    table = pyarrow.Table.from_pylist(rows())
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def harbor_task(path: Path) -> object:
    """Reads the folder of the task that the file belongs to, and its recipe for bubblewrap."""
    folder = path.parent if path.name != "Dockerfile" else path.parents[1]
    task = read_task(folder, {})
    return None if task.dockerfile is None else read_recipe(read_dockerfile(task.dockerfile), HOST)


HOST = Host("/bin", ("debian:*",), frozenset)
HARBOR_DOCKERFILE = 'FROM debian:bookworm-slim\nENV A=b\nWORKDIR /app\nRUN ["echo", "$A"]\nCOPY . /app\n'


def sample_harbor_task(path: Path) -> None:
    write_task(path.parent if path.name != "Dockerfile" else path.parents[1], dockerfile=HARBOR_DOCKERFILE)


def harbor_reward(path: Path) -> object:
    try:
        return read_reward(*(_read(path.parent, name) for name in ("reward.json", "reward.txt")))
    except GraderError as error:
        return error.message


def sample_harbor_job(path: Path) -> None:
    trial = path.parent if path.name == "result.json" else path.parents[1]
    (trial / "agent").mkdir(exist_ok=True)
    steps = [
        {"step_id": 1, "source": "user", "message": "a"},
        {"step_id": 2, "source": "agent", "message": "b"},
    ]
    agent = {"name": "x", "version": "1"}
    trajectory = {"schema_version": "ATIF-v1.4", "session_id": "s", "agent": agent, "steps": steps}
    (trial / "agent/trajectory.json").write_text(json.dumps(trajectory))
    result = {"task_name": "t", "trial_name": "t__1", "verifier_result": {"rewards": {"reward": 1}}}
    (trial / "result.json").write_text(json.dumps(result))


def harbor_job(path: Path) -> object:
    return imported(path.parent if path.name == "result.json" else path.parents[1])


def trials_of_skills(path: Path) -> object:
    return results(path.parents[1])


def sample_skill_trials(path: Path) -> None:
    store_result(path.parents[1], TrialResult("a", "hash", "helps", 0.5, 9, 1))


def draft_of_a_skill(path: Path) -> object:
    return drafts(path.parents[3])


def text_of_a_file(path: Path) -> object:
    return first_texts(load(environ={"HERMES_HOME": str(path.parent / "home")}), [f"file:{path}"], {}, None)


class FileKind(NamedTuple):
    name: str
    """Where the file lies in the folder of its case."""
    sample: Callable[[Path], None]
    read: Callable[[Path], object]


KINDS = {
    "config": FileKind("config.yaml", lambda path: path.write_text("model: a/b\n") and None, config),
    "variables": FileKind(".env", lambda path: path.write_text("A_KEY=b\n") and None, variables),
    "skill": FileKind("skills/a/SKILL.md", lambda path: path.write_text(skill_text("a")) and None, skill),
    "tasks, JSONL": FileKind("tasks.jsonl", sample_jsonl, dataset),
    "tasks, JSON": FileKind("tasks.json", sample_json, dataset),
    "tasks, CSV": FileKind("tasks.csv", sample_csv, dataset),
    "tasks, Parquet": FileKind("tasks.parquet", sample_parquet, dataset),
    "import, JSONL": FileKind("rows.jsonl", sample_jsonl, imported),
    "import, JSON": FileKind("rows.json", sample_json, imported),
    "import, Parquet": FileKind("rows.parquet", sample_parquet, imported),
    "import, session": FileKind("session.jsonl", sample_session, imported),
    "skill, tar": FileKind("a.tar.gz", sample_tar, archive),
    "skill, zip": FileKind("a.zip", sample_zip, archive),
    "adapter, tar": FileKind("adapter.tar", sample_adapter_tar, adapter_tar),
    "adapter": FileKind("adapter_model.safetensors", sample_adapter, adapter),
    "adapter's config": FileKind("adapter_config.json", sample_adapter_config, adapter_rank),
    "safetensors": FileKind("model.safetensors", sample_safetensors, weights),
    "index": FileKind("model.safetensors.index.json", sample_index, weights_index),
    "GGUF": FileKind("model.gguf", sample_gguf, gguf),
    "preference pairs": FileKind("pairs.jsonl", sample_pairs, preferences),
    "token ids for SFT": FileKind("sft.jsonl", sample_ids, chosen),
    "text for SFT": FileKind("sft.parquet", sample_parquet, chosen),
    "proposed texts": FileKind("proposals.txt", sample_text("Be brief.\n\nBe polite.\n"), proposals),
    "evaluation set": FileKind("eval.jsonl", sample_jsonl, eval_set),
    "configuration of a run": FileKind("run.yaml", sample_text("env: {group_size: 4}\n"), run_file),
    "configuration of an environment": FileKind(
        "env.yaml", sample_text("env: {group_size: 4}\n"), env_config
    ),
    "tasks of an environment": FileKind("env.jsonl", sample_jsonl, env_tasks),
    "configuration of compress": FileKind("c.yaml", sample_text("tokenizer: a\n"), compress_file),
    "trajectories to compress": FileKind("data.jsonl", sample_jsonl, compress_input),
    "prompt template": FileKind("templates/a.yaml", sample_text("prompt: say $name\n"), template),
    "tokenizer": FileKind("tokenizer.json", sample_tokenizer, tokenizer),
    "tokenizer's config": FileKind("tokenizer_config.json", sample_tokenizer, tokenizer),
    "model's config": FileKind("config.json", sample_model_config, model_config),
    "chat template": FileKind("chat_template.jinja", sample_tokenizer, tokenizer),
    "batch run": FileKind("run.json", sample_batch, batch_run),
    "journal of a batch": FileKind("journal/w.jsonl", sample_journal, batch_journal),
    "RL run": FileKind("runs/r/config.yaml", sample_run, rl_run),
    "status of an RL run": FileKind("runs/r/status.json", sample_run, rl_run),
    "checkpoints of a run": FileKind("runs/r/training.json", sample_run, rl_run),
    "reward model": FileKind("reward_model.json", sample_reward_model, reward_model),
    "metrics of a run": FileKind("runs/r/metrics.jsonl", sample_run, rl_run),
    **{
        f"session of {client}": FileKind(
            "s.db" if client in ("opencode", "hermes-agent") else "s.jsonl",
            sample_session_of(client),
            coding_session(client),
        )
        for client in CLIENTS
    },
    "part of a question": FileKind("part.txt", sample_text("some text\n"), question_part),
    "schema of an answer": FileKind("schema.json", sample_text('{"type": "object"}'), schema),
    "flags of batch": FileKind("b.yaml", sample_text("num-workers: 2\n"), batch_flags),
    "prefilled messages": FileKind(
        "prefill.json", sample_text('[{"role": "user", "content": "hi"}]'), prefill
    ),
    "file of a skill": FileKind("skills/a/notes.md", sample_skill_file, skill_file),
    "tasks of a reward function": FileKind("prompts.jsonl", sample_jsonl, reward_tasks),
    "rows to score": FileKind("answers.jsonl", sample_jsonl, scored_rows),
    "rows to score, Parquet": FileKind("answers.parquet", sample_parquet, scored_rows),
    "session of some client": FileKind("s.jsonl", sample_session_of("codex"), coding_session("auto")),
    "session, packed": FileKind("s.jsonl.zst", sample_packed_session, packed_session),
    "evaluation set, text": FileKind("eval.txt", sample_text("one line\nand another\n"), eval_set),
    "table, JSONL": FileKind("t.jsonl", sample_jsonl, looked_at),
    "table, JSON": FileKind("t.json", sample_json, looked_at),
    "table, CSV": FileKind("t.csv", sample_csv, looked_at),
    "table, Parquet": FileKind("t.parquet", sample_parquet, looked_at),
    "table, Arrow": FileKind("t.arrow", sample_arrow, looked_at),
    "Harbor task": FileKind("t/task.toml", sample_harbor_task, harbor_task),
    "instruction of a Harbor task": FileKind("t/instruction.md", sample_harbor_task, harbor_task),
    "Dockerfile of a Harbor task": FileKind("t/environment/Dockerfile", sample_harbor_task, harbor_task),
    "reward of a Harbor task": FileKind("reward.json", sample_text('{"reward": 1}'), harbor_reward),
    "reward of a Harbor task, text": FileKind("reward.txt", sample_text("1"), harbor_reward),
    "trial of a Harbor job": FileKind("job/t/result.json", sample_harbor_job, harbor_job),
    "trajectory of a Harbor job": FileKind("job/t/agent/trajectory.json", sample_harbor_job, harbor_job),
    "trials of skills": FileKind("trials/results.jsonl", sample_skill_trials, trials_of_skills),
    "draft of a skill": FileKind("skills/.drafts/a/SKILL.md", sample_text(skill_text("a")), draft_of_a_skill),
    "text to improve": FileKind("AGENTS.md", sample_text("Be brief.\n"), text_of_a_file),
    "database to rescue": FileKind("hermes.db", sample_db, salvaged),
    "database": FileKind("hermes.db", sample_db, database),
}

Damage = Callable[[bytes, random.Random], bytes]


def flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(60):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def flip_header(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(4):
        changed[rng.randrange(min(64, len(data)))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(changed)


def insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(100) + data[at:]


@cache
def gzip_bomb() -> bytes:
    return gzip.compress(bytes(200 << 20))


@cache
def zstd_bomb() -> bytes:
    import zstandard

    packer = zstandard.ZstdCompressor().compressobj()
    return b"".join(packer.compress(bytes(1 << 24)) for _ in range(512)) + packer.flush()


DAMAGES: dict[str, Damage] = {
    "empty": lambda data, rng: b"",
    "one byte": lambda data, rng: data[:1],
    "half": lambda data, rng: data[: len(data) // 2],
    "without its last byte": lambda data, rng: data[:-1],
    "cut anywhere": lambda data, rng: data[: rng.randrange(len(data))],
    "flipped bits": flip,
    "flipped bits in the header": flip_header,
    "greatest sizes": lambda data, rng: data[:8] + b"\xff" * 8 + data[16:],
    "large sizes": lambda data, rng: struct.pack("<Q", 1 << 40) + data[8:],
    "bytes put in": insert,
    "zeros": lambda data, rng: bytes(MEGABYTE),
    "noise": lambda data, rng: rng.randbytes(MEGABYTE),
    "zeros behind it": lambda data, rng: data + bytes(MEGABYTE),
    "twice": lambda data, rng: data + data,
    "brackets": lambda data, rng: b"[" * MEGABYTE,
    "front matter of brackets": lambda data, rng: b"---\na: " + b"[" * 200_000 + b"\n---\n",
    "nested objects": lambda data, rng: b'{"a":' * (MEGABYTE // 5),
    "a deep row": lambda data, rng: b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "dashes": lambda data, rng: b"- " * (MEGABYTE // 2),
    "aliases that multiply": lambda data, rng: (
        b"---\na0: &a0 [x, x]\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 30))
        + b"---\n"
    ),
    "one line": lambda data, rng: b"x" * MEGABYTE,
    "a number": lambda data, rng: b'{"id": ' + b"9" * 500_000 + b"}",
    "lone surrogates": lambda data, rng: b'{"prompt": "\\ud800", "messages": [{"role": "\\udfff"}]}\n' * 50,
    "wrong types": lambda data, rng: b'{"messages": 7, "prompt": [1], "conversations": {"a": null}}\n' * 50,
    "no text": lambda data, rng: b"\xff\xfe" + "model: a\n".encode("utf-16-le") * 100,
    "commas": lambda data, rng: b"," * MEGABYTE,
    "quotes": lambda data, rng: b'"' * (MEGABYTE + 1),
    "a gzip bomb": lambda data, rng: gzip_bomb(),
    "a zstd bomb": lambda data, rng: zstd_bomb(),
}


def read_limited(read: Callable[[Path], object], paths: Sequence[Path]) -> list[str]:
    """For each file '' if the reader accepts it, its refusal, or a line that begins with ESCAPED.

    A forked child reads one file after another, each within the limits; if it ends, another reads the rest.
    """
    messages: list[str] = []
    while len(messages) < len(paths):
        inlet, outlet = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for path in paths[len(messages) :]:
                    os.write(outlet, json.dumps(_read_once(read, path)).encode() + b"\n")
            finally:
                os._exit(0)
        os.close(outlet)
        with open(inlet, "rb") as pipe:  # noqa: PTH123 - a descriptor
            messages += map(json.loads, pipe)
        status = os.waitpid(child, 0)[1]
        if status:
            number = os.WTERMSIG(status)
            messages.append(f"{ESCAPED} by signal {number} (27: processor time, 14: it waits)")
    return messages


def _read_once(read: Callable[[Path], object], path: Path) -> str:
    signal.setitimer(signal.ITIMER_PROF, _CPU_S)
    signal.alarm(120)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _peak_bytes()
    try:
        read(path)
        message = ""
    except HermesError as error:
        message = error.message
    except BaseException as error:  # noqa: BLE001 - it is reported
        message = f"{ESCAPED} {type(error).__name__}: {error}"[:2000]
    signal.setitimer(signal.ITIMER_PROF, 0)
    grown = _peak_bytes() - before
    return message if grown <= _MEMORY_BYTES else f"{ESCAPED} with {grown >> 20} MiB"


def _peak_bytes() -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) << 10


def place(folder: Path, kind: FileKind) -> Path:
    path = folder / kind.name
    path.parent.mkdir(parents=True, exist_ok=True)
    kind.sample(path)
    return path
