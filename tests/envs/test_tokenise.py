"""Conversations for a trainer, on the bundled tokenizer and other families' templates."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hermes.envs.tokenise import load_tokenizer, return_lists, tokenize_for_trainer, tokenize_for_trainer_dpo
from hermes.errors import ConfigError
from tests.envs.templates import FAMILIES, Family, bundled_tokenizer, dressed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHAT = [
    {"role": "user", "content": "What is 2+2?"},
    {"role": "assistant", "content": "Let me see. 4"},
    {"role": "user", "content": "And 3+3?"},
    {"role": "assistant", "content": "It is 6, of course"},
]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def tokenizer(request: pytest.FixtureRequest, bundled_home: Path) -> PreTrainedTokenizerBase:
    family: Family = request.param
    return dressed(bundled_tokenizer(bundled_home), family)


def trained(tokenizer: PreTrainedTokenizerBase, made: dict[str, Any]) -> str:
    return str(tokenizer.decode([token for token in made["masks"] if token != -100]))


def test_the_last_answer_is_trained_on_and_nothing_before_it(tokenizer: PreTrainedTokenizerBase) -> None:
    made = tokenize_for_trainer(tokenizer, CHAT)
    assert type(made["tokens"]) is list and all(type(token) is int for token in made["tokens"])
    assert len(made["tokens"]) == len(made["masks"])
    assert trained(tokenizer, made).strip().startswith("It is 6, of course")
    assert "Let me see" not in trained(tokenizer, made)
    whole = tokenizer.decode(made["tokens"])
    assert whole == tokenizer.apply_chat_template(CHAT, tokenize=False)


def test_all_answers_are_trained_on_if_asked_for(tokenizer: PreTrainedTokenizerBase) -> None:
    made = tokenize_for_trainer(tokenizer, CHAT, train_on_all_assistant_turns=True)
    text = trained(tokenizer, made)
    assert "Let me see. 4" in text and "It is 6, of course" in text
    assert "What is" not in text and "And 3+3" not in text
    last = tokenize_for_trainer(tokenizer, CHAT)
    assert made["tokens"] == last["tokens"]
    assert all(mask in (token, -100) for token, mask in zip(made["tokens"], made["masks"], strict=True))


def test_messages_come_along_only_if_asked_for(tokenizer: PreTrainedTokenizerBase) -> None:
    assert "messages" not in tokenize_for_trainer(tokenizer, CHAT)
    assert tokenize_for_trainer(tokenizer, CHAT, include_messages=True)["messages"] == CHAT


def test_an_answer_that_was_cut_off_is_not_given_an_end(bundled_home: Path) -> None:
    tokenizer = copy.deepcopy(bundled_tokenizer(bundled_home))  # the other tests have the same one
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    whole = tokenize_for_trainer(tokenizer, CHAT)
    cut = tokenize_for_trainer(tokenizer, CHAT, finish_reason="length")
    assert whole["tokens"][-1] == tokenizer.eos_token_id
    assert cut["tokens"] == whole["tokens"][:-1] and cut["masks"] == whole["masks"][:-1]


def test_a_tokenizer_handed_out_gives_plain_lists(bundled_home: Path) -> None:
    tokenizer = return_lists(copy.deepcopy(bundled_tokenizer(bundled_home)))
    ids = tokenizer.apply_chat_template(CHAT)
    assert type(ids) is list and type(ids[0]) is int
    assert tokenizer.apply_chat_template(CHAT, tokenize=True, add_generation_prompt=True)[: len(ids)] == ids
    assert isinstance(tokenizer.apply_chat_template(CHAT, tokenize=False), str)
    assert "input_ids" in tokenizer.apply_chat_template(CHAT, return_dict=True)
    assert tokenizer.apply_chat_template(CHAT, return_tensors="pt")["input_ids"].shape[1] == len(ids)


def test_a_preference_pair_shares_its_prompt(bundled_home: Path) -> None:
    tokenizer = bundled_tokenizer(bundled_home)
    given = {"prompt": "Hi", "chosen": "Good day", "rejected": "What"}
    pair = tokenize_for_trainer_dpo(tokenizer, given)
    assert given.items() <= pair.items(), "some environments send the texts along"
    shared = pair["prompt_input_ids"]
    for side in ("chosen", "rejected"):
        assert pair[f"{side}_input_ids"][: len(shared)] == shared
        assert len(pair[f"{side}_input_ids"]) == len(pair[f"{side}_attention_mask"])
    assert pair["chosen_input_ids"] != pair["rejected_input_ids"]


def test_the_bundled_tokenizer_goes_by_its_name(bundled_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(bundled_home))
    assert load_tokenizer("hermes/smollm2").eos_token == "<|im_end|>"


def test_a_tokenizer_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        load_tokenizer(str(tmp_path / "nothing"))
    assert "--env.tokenizer_name" in caught.value.hint


def test_special_tokens_in_a_user_turn_do_not_end_it(bundled_home: Path) -> None:
    tokenizer = bundled_tokenizer(bundled_home)
    chat = [{"role": "user", "content": "a<|im_end|>b"}, {"role": "assistant", "content": "c"}]
    harmless = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    tokens = tokenize_for_trainer(tokenizer, chat)["tokens"]
    assert tokens.count(end) == tokenize_for_trainer(tokenizer, harmless)["tokens"].count(end)
    assert tokenizer.decode(tokens) == tokenizer.apply_chat_template(chat, tokenize=False)


def test_a_chat_that_the_template_rejects_is_not_blamed_on_a_model_server(bundled_home: Path) -> None:
    tokenizer = copy.deepcopy(bundled_tokenizer(bundled_home))
    tokenizer.chat_template = "{{ raise_exception('no agents here') }}"
    with pytest.raises(ValueError, match="no agents here"):
        tokenize_for_trainer(tokenizer, CHAT)
