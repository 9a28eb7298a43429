"""Server-sent events, from bytes cut at any place."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hermes.models.remote.endpoint import EventDecoder

CHARACTERS = st.characters(codec="utf-8", exclude_characters="\r\n")
TEXTS = st.lists(st.text(CHARACTERS).map(lambda text: "x" + text), max_size=6)


@given(TEXTS, st.sampled_from(["\n", "\r\n"]), st.lists(st.integers(0, 400), max_size=8), st.booleans())
def test_the_data_of_every_event_arrives_once_wherever_the_bytes_are_cut(
    texts: list[str], newline: str, cuts: list[int], closed: bool
) -> None:
    """Unicode line separators are part of the data; only LF and CRLF end a line."""
    stream = "".join(f": ping{newline}event: x{newline}data: {text}{newline}{newline}" for text in texts)
    data = stream.encode() if closed else stream.encode().rstrip(b"\r\n")
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    decoder = EventDecoder()
    found = [event for start, end in pairwise(places) for event in decoder.feed(data[start:end])]
    found += decoder.end()
    assert [event.decode() for event in found] == texts


def test_data_lines_of_one_event_are_joined() -> None:
    assert list(EventDecoder().feed(b'data: {"a":\ndata: 1}\n\n')) == [b'{"a":\n1}']
