"""Output in bounded memory."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.sandbox.process import Capture


@settings(deadline=None, database=None)
@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(min_value=2, max_value=200))
def test_everything_is_kept_or_the_ends_are(chunks: list[bytes], limit: int) -> None:
    whole = b"".join(chunks)
    capture = Capture(limit)
    for chunk in chunks:
        capture.feed(chunk)
    assert capture.truncated is (len(whole) > limit)
    if not capture.truncated:
        assert capture.data == whole
        assert capture.text() == whole.decode("utf-8", "replace")
    else:
        assert capture.data == whole[: limit - limit // 2] + whole[len(whole) - limit // 2 :]
        assert f"[{len(whole) - limit} bytes left out]" in capture.text()


def test_memory_stays_bounded_however_much_comes() -> None:
    capture = Capture(1000)
    for _ in range(10_000):
        capture.feed(b"x" * 1000)
    assert len(capture.data) == 1000
    assert "[9999000 bytes left out]" in capture.text()


def test_a_character_cut_at_the_gap_is_left_out_not_damaged() -> None:
    for limit in range(8, 24):
        capture = Capture(limit)
        capture.feed("é€😀".encode() * 20)
        assert "�" not in capture.text()


def test_reading_in_between_does_not_disturb() -> None:
    capture = Capture(10)
    for i in range(10):
        capture.feed(bytes([ord("a") + i]) * 3)
        capture.text()
    assert capture.data == b"aaabb" + b"iijjj"
