"""Escaping of special tokens: whatever the content, it comes back, and nothing else is literal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hermes.models.render.escape import Rendered, SpecialTokenEscaper, literal, special_pattern

SPECIAL = special_pattern(["<|im_end|>", "<|im", "</s>"])
texts = st.lists(
    st.sampled_from(["<|im_end|>", "<|im", "</s>", "\ue000", "\ue001", "\ue0000\ue001", "7", "a ", "<|"])
).map("".join)


@given(contents=st.lists(texts, max_size=4))
def test_escaped_content_holds_no_special_token_and_is_restored(contents: list[str]) -> None:
    escaper = SpecialTokenEscaper(SPECIAL, contents)
    escaped = escaper.escape(contents)
    assert not any(SPECIAL.search(text) for text in escaped)
    rendered = escaper.restore("<|im_end|>".join(escaped))
    assert rendered.text == "<|im_end|>".join(contents)
    expected = Rendered("")
    for index, content in enumerate(contents):
        expected += (Rendered("<|im_end|>") if index else Rendered("")) + literal(SPECIAL, content)
    assert rendered == expected


@given(text=texts, start=st.integers(0, 40))
def test_pieces_are_the_text_from_any_start(text: str, start: int) -> None:
    rendered = literal(SPECIAL, text)
    assert "".join(piece for piece, _ in rendered.pieces(start)) == text[start:]
    assert all(piece for piece, _ in rendered.pieces(start))
    assert Rendered.join(rendered.pieces()) == rendered


def test_a_start_within_a_literal_span_leaves_the_rest_literal() -> None:
    rendered = literal(SPECIAL, "ab</s>c")
    assert list(rendered.pieces(3)) == [("/s>", True), ("c", False)]


def test_keys_and_numbers_are_left_alone() -> None:
    content = {"</s>": ["</s>", 1, None, {"x": True}]}
    escaper = SpecialTokenEscaper(SPECIAL, content)
    escaped = escaper.escape(content)
    assert list(escaped) == ["</s>"] and escaped["</s>"][1:] == [1, None, {"x": True}]
    assert escaped["</s>"][0] != "</s>"


def test_a_context_that_spells_the_same_text_otherwise_is_not_continued() -> None:
    written, spelled = Rendered("a</s>b"), literal(SPECIAL, "a</s>b")
    assert (spelled + Rendered("more")).continues(spelled)
    assert not (spelled + Rendered("more")).continues(written)
