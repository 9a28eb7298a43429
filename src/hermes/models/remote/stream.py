"""Merges the chunks of a streamed response into the object that an unstreamed response would be.

Tolerated: empty chunks, chunks without choices, repeated headers, finish reasons and usage. Text is used
exactly as sent, twice if it was sent twice: two equal pieces in a row are ordinary text. A stream that ends
without a finish reason was cut off, and `result` returns None.
"""

from __future__ import annotations

from hermes.core import JSON, JSONObject
from hermes.models.base import StreamDelta
from hermes.models.fields import as_list, as_object, as_objects, as_text
from hermes.models.remote.wire import read_content

_CONCATENATED = ("content", "refusal", "reasoning", "reasoning_content", "reasoning_details")


class StreamMerger:
    def __init__(self) -> None:
        self._top: JSONObject = {}
        self._choice: JSONObject = {"index": 0}
        self._message: JSONObject = {"role": "assistant", "content": None}
        self._calls: list[JSONObject] = []
        self._indexes: list[JSON] = []
        """The index under which each call's pieces arrive."""

    def feed(self, chunk: JSONObject) -> StreamDelta | None:
        """Adds a chunk. Returns its text for display, or None if it has no output."""
        for key, value in chunk.items():
            if key != "choices" and value is not None:
                self._top[key] = value
        delta: JSONObject = {}
        for choice in as_objects(chunk.get("choices")):
            if choice.get("index", 0) == 0:
                self._feed_choice(choice)
                delta = as_object(choice.get("delta"))
                self._feed_delta(delta)
        text, inline = read_content(delta.get("content"))
        thinking = as_text(delta.get("reasoning_content")) or as_text(delta.get("reasoning")) or inline or ""
        return StreamDelta(text, thinking) if text or thinking or delta.get("tool_calls") else None

    def result(self) -> JSONObject | None:
        """The whole response, or None if the stream was cut off."""
        if not self._choice.get("finish_reason"):
            return None
        message = {**self._message, **({"tool_calls": self._calls} if self._calls else {})}
        return {**self._top, "object": "chat.completion", "choices": [{**self._choice, "message": message}]}

    def _feed_choice(self, choice: JSONObject) -> None:
        for key, value in choice.items():
            if value is None or key == "delta":
                continue
            if key == "token_ids":
                self._choice.setdefault(key, []).extend(as_list(value))
            elif key == "logprobs":
                merged = self._choice.setdefault(key, {})
                for name, entries in as_object(value).items():
                    merged.setdefault(name, []).extend(as_list(entries))
            else:
                self._choice[key] = value

    def _feed_delta(self, delta: JSONObject) -> None:
        for key, value in delta.items():
            if key == "tool_calls":
                for piece in as_objects(value):
                    self._feed_call(piece)
            elif value is None:
                continue
            elif key in _CONCATENATED:
                self._message[key] = _concatenate(self._message.get(key), value)
            else:
                self._message[key] = value

    def _feed_call(self, piece: JSONObject) -> None:
        function = as_object(piece.get("function"))
        name, arguments = as_text(function.get("name")), as_text(function.get("arguments"))
        call = self._find_call(piece.get("index"), piece.get("id"), name)
        if call is None:
            self._indexes.append(piece.get("index"))
            rest = {key: value for key, value in piece.items() if key != "index"}
            self._calls.append({**rest, "function": {**function, "name": name, "arguments": arguments}})
            return
        merged = call["function"]
        repeated = bool(name) and name == merged["name"] and arguments == merged["arguments"]
        if not repeated:
            merged["name"] = merged["name"] or name
            merged["arguments"] += arguments
        call["id"] = call.get("id") or piece.get("id")

    def _find_call(self, index: JSON, call_id: JSON, name: str) -> JSONObject | None:
        """The call a piece belongs to; None if it begins a new one.

        The index decides. But some servers send none, or the same for all calls, so a piece with both a name
        and an id of its own begins a new call whatever its index is.
        """
        for position in reversed(range(len(self._calls))):
            call = self._calls[position]
            foreign = bool(name and call_id and call.get("id") and call["id"] != call_id)
            if self._indexes[position] == index and not foreign:
                return call
        return None


def _concatenate(old: JSON, new: JSON) -> JSON:
    """Text after text; or, as soon as one of them is a list of typed parts, a list of all parts."""
    if not isinstance(old, list) and not isinstance(new, list):
        return as_text(old) + as_text(new)
    return [*_parts(old), *_parts(new)]


def _parts(value: JSON) -> list[JSON]:
    return [{"type": "text", "text": value}] if isinstance(value, str) and value else as_list(value)
