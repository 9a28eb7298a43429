"""What others make of the exported files: the datasets library, and TRL's trainers with the bundled model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from hermes.core import Message, Rating, RatingKind, Reward, TokenTrace, ToolCall, new_id
from hermes.data.export.run import ExportPlan, export
from hermes.data.formats.base import ToolCallStyle
from hermes.data.formats.registry import FORMATS
from hermes.models.local.bundled import model_folder
from hermes.store import Reader, Writer
from tests import records

TRACE = TokenTrace((1, 2), (3, 4), (-0.5, -0.25), "step-1")
TOOLS = (
    {
        "name": "calculator",
        "description": "Computes.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
    {"name": "odd", "parameters": {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}}},
)


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Four tries at one task, with rewards, thumbs, step ratings and tokens; other arguments in each."""
    db = tmp_path / "hermes.db"
    call = records.model_call(tokens=TRACE)
    with Writer(db) as writer:
        for number, answer in enumerate(["It is 4.", "It is 5.", "Four.", "No idea."]):
            said = records.conversation(answer=answer)
            arguments = json.dumps(
                {"expression": "2 + 2", "extra": [number, None, {"deep": answer}][number % 3]}
            )
            asked = ToolCall("call_1", "calculator", arguments)
            said[2] = Message.assistant("Let me see.", reasoning="A sum.", tool_calls=(asked,))
            found = records.record(writer, said, tools=TOOLS, call=call, task_id="sum", run_id="r")
            writer.add_reward(Reward(found, 1.0 - number / 4, "test"))
            thumb = 1.0 if number % 2 == 0 else -1.0
            for kind, step in ((RatingKind.THUMB, None), (RatingKind.STEP, 2), (RatingKind.STEP, 4)):
                writer.add_rating(Rating(new_id(), found, kind, thumb, "ann", 1, step_index=step)).result()
        plain_pair(writer)
    with Reader(db) as opened:
        yield opened


def plain_pair(writer: Writer) -> None:
    """Two answers to a question, without tools."""
    for answer, reward in (("Hello!", 1.0), ("Go away.", 0.0)):
        said = [Message.user("Good morning."), Message.assistant(answer)]
        found = records.record(writer, said, tools=(), call=records.model_call(tokens=TRACE), task_id="greet")
        writer.add_reward(Reward(found, reward, "test")).result()
        for kind, step in ((RatingKind.THUMB, None), (RatingKind.STEP, 1)):
            rating = Rating(new_id(), found, kind, 1.0 if reward else -1.0, "ann", 1, step_index=step)
            writer.add_rating(rating).result()


def written(
    reader: Reader, path: Path, name: str, calls: ToolCallStyle = ToolCallStyle.STRUCTURED
) -> list[dict[str, Any]]:
    """Exports to the path and, beside it, to JSONL, whose rows are returned."""
    export(reader, ExportPlan(FORMATS[name], path, calls=calls))
    export(reader, ExportPlan(FORMATS[name], path.with_suffix(".jsonl"), calls=calls))
    return [json.loads(line) for line in path.with_suffix(".jsonl").read_text("utf-8").splitlines()]


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def rounded(value: Any) -> Any:
    """`datasets` reads 0.7 in a JSON column as 0.7000000000000001; `hermes import` reads the text itself."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
@pytest.mark.parametrize("name", FORMATS)
def test_datasets_loads_every_format(reader: Reader, tmp_path: Path, name: str, ending: str) -> None:
    path = tmp_path / f"data{ending}"
    rows = written(reader, path, name) if name != "sts" else None
    if rows is None:
        export(reader, ExportPlan(FORMATS[name], path))
    loaded = datasets.load_dataset(ending[1:], data_files=str(path), split="train")
    assert loaded.column_names == [column.name for column in FORMATS[name].columns]
    assert loaded.num_rows > 0
    if rows is not None:
        same = rounded if FORMATS[name].whole else without_nulls
        assert [same(row) for row in loaded] == [same(row) for row in rows]


@pytest.mark.parametrize(
    "name", ["trl-sft", "trl-preference", "trl-unpaired", "sharegpt", "messages", "axolotl"]
)
def test_two_exports_of_other_data_join_without_a_word(reader: Reader, tmp_path: Path, name: str) -> None:
    export(reader, ExportPlan(FORMATS[name], tmp_path / "a.parquet"))
    with Writer(tmp_path / "other.db") as writer:
        plain_pair(writer)
    with Reader(tmp_path / "other.db") as other:
        export(other, ExportPlan(FORMATS[name], tmp_path / "b.parquet"))
    files = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    parts = [datasets.load_dataset("parquet", data_files=file, split="train") for file in files]
    assert parts[0].features == parts[1].features
    assert datasets.concatenate_datasets(parts).num_rows == sum(part.num_rows for part in parts)


@pytest.fixture(scope="module")
def bundled(bundled_home: Path) -> tuple[Any, Callable[[], Any]]:
    """The bundled tokenizer, and a way to get a tiny model that goes with it."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(model_folder(bundled_home))
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    return tokenizer, lambda: LlamaForCausalLM(shape)


def masking_template(tokenizer: Any) -> str:
    """The bundled template with the marks by which trainers know what the assistant said."""
    spoken = "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    return (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
        "{% if message['role'] == 'assistant' %}" + spoken + "{% else %}"
        "{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )


def test_sft_trainer_learns_what_the_assistant_said_and_nothing_else(
    reader: Reader, tmp_path: Path, bundled: tuple[Any, Callable[[], Any]]
) -> None:
    from trl import SFTConfig, SFTTrainer

    tokenizer, model = bundled
    rows = written(reader, tmp_path / "data.parquet", "trl-sft", ToolCallStyle.TEXT)
    tokenizer.chat_template = masking_template(tokenizer)
    trainer = SFTTrainer(
        model=model(),
        args=SFTConfig(
            output_dir=str(tmp_path / "out"),
            assistant_only_loss=True,
            max_length=None,
            report_to="none",
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=datasets.load_dataset(
            "parquet", data_files=str(tmp_path / "data.parquet"), split="train"
        ),
        processing_class=tokenizer,
    )
    prepared = list(trainer.train_dataset)
    assert len(prepared) == len(rows) == 6
    for row, made in zip(rows, prepared, strict=True):
        learned = tokenizer.decode([token for token in made["labels"] if token != -100])
        said = [m["content"] + "<|im_end|>" for m in row["messages"] if m["role"] == "assistant"]
        assert learned == "".join(said)
        assert "<tool_response>" not in learned
        seen = tokenizer.decode(made["input_ids"])
        assert ("<tool_call>" in learned) == ("<tools>" in seen) == ("2 + 2" in seen)


@pytest.mark.parametrize("calls", ToolCallStyle)
def test_dpo_trainer_takes_the_pairs(
    reader: Reader, tmp_path: Path, bundled: tuple[Any, Callable[[], Any]], calls: ToolCallStyle
) -> None:
    from trl import DPOConfig, DPOTrainer

    tokenizer, model = bundled
    tokenizer.chat_template = masking_template(tokenizer)
    rows = written(reader, tmp_path / "data.parquet", "trl-preference", calls)
    pairs = datasets.load_dataset("parquet", data_files=str(tmp_path / "data.parquet"), split="train")
    trainer = DPOTrainer(
        model=model(),
        ref_model=model(),
        args=DPOConfig(
            output_dir=str(tmp_path / "out"), report_to="none", use_cpu=True, bf16=False, max_length=None
        ),
        train_dataset=pairs,
        processing_class=tokenizer,
    )
    prepared = list(trainer.train_dataset)
    assert len(prepared) == len(rows) >= 4
    for row, made in zip(rows, prepared, strict=True):
        prompt = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        assert tokenizer.decode(made["prompt_ids"]) == prompt
        assert tokenizer.decode(made["chosen_ids"]).startswith(row["chosen"][0]["content"])
        assert tokenizer.decode(made["rejected_ids"]).startswith(row["rejected"][0]["content"])
        assert made["chosen_ids"] != made["rejected_ids"]


def test_kto_trainer_takes_the_thumbs(
    reader: Reader, tmp_path: Path, bundled: tuple[Any, Callable[[], Any]]
) -> None:
    from trl import KTOConfig, KTOTrainer

    tokenizer, model = bundled
    tokenizer.chat_template = masking_template(tokenizer)
    rows = written(reader, tmp_path / "data.parquet", "trl-unpaired", ToolCallStyle.TEXT)
    # Of each try with tools the turn and two of its steps are rated; the thumb and the step of a plain answer
    # are about the same message.
    assert [row["label"] for row in rows] == [*[*[True] * 3, *[False] * 3] * 2, True, False]
    trainer = KTOTrainer(
        model=model(),
        ref_model=model(),
        args=KTOConfig(
            output_dir=str(tmp_path / "out"),
            report_to="none",
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=2,
        ),
        train_dataset=datasets.load_dataset(
            "parquet", data_files=str(tmp_path / "data.parquet"), split="train"
        ),
        processing_class=tokenizer,
    )
    assert sorted(made["label"] for made in trainer.train_dataset) == sorted(row["label"] for row in rows)
    texts = [tokenizer.decode(made["completion_ids"]) for made in trainer.train_dataset]
    assert sum("<tool_call>" in text for text in texts) == 4 + 4, "four turns, and the call of each by itself"


def test_reward_trainer_takes_the_pairs(
    reader: Reader, tmp_path: Path, bundled: tuple[Any, Callable[[], Any]]
) -> None:
    from transformers import LlamaForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    tokenizer, model = bundled
    tokenizer.chat_template = masking_template(tokenizer)
    rows = written(reader, tmp_path / "data.parquet", "trl-preference", ToolCallStyle.TEXT)
    shape = model().config
    shape.num_labels = 1
    trainer = RewardTrainer(
        model=LlamaForSequenceClassification(shape),
        args=RewardConfig(output_dir=str(tmp_path / "out"), report_to="none", use_cpu=True, bf16=False),
        train_dataset=datasets.load_dataset(
            "parquet", data_files=str(tmp_path / "data.parquet"), split="train"
        ),
        processing_class=tokenizer,
    )
    prepared = list(trainer.train_dataset)
    assert len(prepared) == len(rows)
    assert row_text(tokenizer, prepared[0]["chosen_ids"]).endswith(rows[0]["chosen"][-1]["content"])


def row_text(tokenizer: Any, ids: list[int]) -> str:
    return (
        str(tokenizer.decode(ids)).removesuffix(tokenizer.eos_token).rstrip("\n").removesuffix("<|im_end|>")
    )
