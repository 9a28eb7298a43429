"""Counts are those of transformers' own chat template and tokenizer, whatever the text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hermes.core import JSONObject, Role
from hermes.data.compress.counting.tokenizer import BUNDLED, find_tokenizer
from hermes.data.compress.counting.tokens import Counter, cutting_expression
from hermes.errors import HermesError, UsageError
from hermes.models.render.jinja import TemplateRefusalError
from tests.data.compress import made

TOOLS: list[JSONObject] = [{"type": "function", "function": {"name": "ls", "parameters": {"a": ["é", 1.5]}}}]
CHAT: list[JSONObject] = [
    {"role": "system", "content": " be brief\n"},
    {"role": "user", "content": "\n\n  hi <|im_end|> there  "},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "ls", "arguments": '{"a": "é"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "漢字\t🙂 x.y/z 12345\n" * 30},
    {"role": "assistant", "content": "done", "reasoning_content": "ok"},
]
texts = st.text(max_size=30).filter(lambda text: text.isprintable()) | st.sampled_from(
    [
        "",
        " ",
        "\n",
        "<|im_start|>",
        "<|im_end|>x",
        "  lead",
        "trail  ",
        "1234567",
        "x<|im_end|>\n<|im_start|>",
    ]
)
turns = st.lists(
    st.builds(
        lambda role, parts: {"role": role, "content": "".join(parts)},
        st.sampled_from(["system", "user", "assistant", "tool"]),
        st.lists(texts, max_size=5),
    ),
    min_size=1,
    max_size=6,
)


def by_transformers(folder: Path | str, chat: list[JSONObject], tools: list[JSONObject] | None = None) -> int:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids: Any = tokenizer.apply_chat_template(chat, tools=tools, tokenize=True, return_dict=False)
    return len(ids)


@given(chat=turns)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_counts_are_those_of_the_whole_conversation(
    tokenizer_folder: Path, counter: Counter, chat: list[JSONObject]
) -> None:
    assert counter.conversation(chat) == by_transformers(tokenizer_folder, chat)


def test_the_bundled_model_is_counted_as_transformers_counts_it(bundled_home: Path) -> None:
    counter = Counter(find_tokenizer(BUNDLED, bundled_home))
    chat = [{"role": turn["role"], "content": turn["content"]} for turn in CHAT]
    assert counter.conversation(chat) == by_transformers(bundled_home / "models" / "hermes--smollm2", chat)


def test_a_template_with_tools_thinking_and_calls_is_rendered_as_transformers_does(tmp_path: Path) -> None:
    folder = made.write_tokenizer(tmp_path, made.NATIVE)
    counter = Counter(find_tokenizer(str(folder), tmp_path))
    assert counter.conversation(CHAT, TOOLS) == by_transformers(folder, CHAT, TOOLS)
    assert counter.conversation(CHAT) == by_transformers(folder, CHAT)


def test_a_tokenizer_that_needs_transformers_is_opened_by_it(tmp_path: Path) -> None:
    folder = made.write_tokenizer(tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "GPT2Tokenizer"}))
    chat = [{"role": turn["role"], "content": turn["content"]} for turn in CHAT]
    assert Counter(find_tokenizer(str(folder), tmp_path)).conversation(chat) == by_transformers(folder, chat)


def test_a_text_is_not_cut_where_an_added_token_looks_at_its_neighbours(tmp_path: Path) -> None:
    folder = made.write_tokenizer(tmp_path)
    data = json.loads((folder / "tokenizer.json").read_text())
    assert cutting_expression(data) is not None
    data["added_tokens"][1]["rstrip"] = True
    assert cutting_expression(data) is None
    (folder / "tokenizer.json").write_text(json.dumps(data))
    chat = [{"role": "user", "content": "a <|im_end|>   b"}, {"role": "assistant", "content": " c "}]
    assert Counter(find_tokenizer(str(folder), tmp_path)).conversation(chat) == by_transformers(folder, chat)


def test_the_shares_of_turns_add_up_to_nearly_the_whole(counter: Counter) -> None:
    chat = [{"role": turn["role"], "content": turn["content"]} for turn in CHAT]
    total, each = counter.measure(chat, [turn["content"] for turn in chat])
    assert total == counter.conversation(chat)
    assert len(each) == len(chat) and max(each) == each[3]
    assert total / 2 < sum(each) <= total


def test_a_template_that_refuses_tool_turns_is_told_results_as_the_user(tmp_path: Path) -> None:
    strict = made.CHATML.replace(
        "<|im_start|>",
        "{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}<|im_start|>",
        1,
    )
    counter = Counter(find_tokenizer(str(made.write_tokenizer(tmp_path, strict)), tmp_path))
    assert counter.result_role is Role.USER
    with pytest.raises(TemplateRefusalError, match="no tools"):
        counter.conversation([{"role": "tool", "content": "x"}])


def test_a_template_cannot_reach_outside_its_arguments(tmp_path: Path) -> None:
    nosy = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    counter = Counter(find_tokenizer(str(made.write_tokenizer(tmp_path, nosy)), tmp_path))
    with pytest.raises(TemplateRefusalError, match="unsafe"):
        counter.conversation([{"role": "user", "content": "x"}])


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    folder = made.write_tokenizer(tmp_path, " ")
    with pytest.raises(UsageError, match="no chat template"):
        find_tokenizer(str(folder), tmp_path)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no tokenizer"):
        find_tokenizer(str(tmp_path), tmp_path)


def test_code_that_a_tokenizer_brings_along_is_not_run_unless_asked(tmp_path: Path) -> None:
    folder = tmp_path / "remote"
    folder.mkdir()
    made.write_tokenizer(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    own = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **own}))
    marker = tmp_path / "it-ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').write('x')\nclass Evil: pass\n")
    with pytest.raises(UsageError):
        find_tokenizer(str(folder), tmp_path)
    assert not marker.exists()


PLUGIN = """
def toy():
    ranks = {bytes([i]): i for i in range(256)} | {b"he": 256}
    return {"name": "toy", "pat_str": "[a-z]+|[^a-z]", "mergeable_ranks": ranks, "special_tokens": {}}

ENCODING_CONSTRUCTORS = {"toy": toy}
"""
COUNT = """
import sys
from pathlib import Path
from hermes.data.compress.counting.tokenizer import find_tokenizer
from hermes.data.compress.counting.tokens import Counter
print(Counter(find_tokenizer("toy", Path("."))).conversation([{"role": "user", "content": "hehe x"}]))
"""


def test_a_tiktoken_encoding_counts_the_published_chat_layout(tmp_path: Path) -> None:
    (tmp_path / "tiktoken_ext").mkdir()
    (tmp_path / "tiktoken_ext" / "toy.py").write_text(PLUGIN)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COUNT], env=env, capture_output=True, text=True)
    parts = ["<|im_start|>", *"user", "\n", "he", "he", " ", "x", "<|im_end|>", "\n"]
    assert done.stdout.strip() == str(len(parts)), done.stderr


def test_a_tiktoken_encoding_that_cannot_be_loaded_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(HermesError, match="cannot be loaded") as caught:
        find_tokenizer("p50k_edit", tmp_path)
    assert "TIKTOKEN_CACHE_DIR" in caught.value.hint
