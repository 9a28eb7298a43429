"""One trajectory: its steps as cards, a step in full, its raw JSON, its tokens, its images.

Ids are decoded only with the tokenizer of the model that sampled them: the base model of the run, or the
bundled model by its name. For any other, or one that
this machine does not have, the ids themselves are shown: nothing is downloaded.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.responses import PlainTextResponse, Response

from hermes.config.paths import models_dir
from hermes.core import Header, Relation
from hermes.data.record import to_record
from hermes.errors import HermesError
from hermes.rl.run import RlRun
from hermes.store import Filter, Summary
from hermes.store.browse.reader import BrowseReader, TrajectoryHead
from hermes.web.render.text import search_words
from hermes.web.render.tokens import Decode, token_view
from hermes.web.render.transcript import StepCard, make_cards, raster_type, read_arguments, sort_verdicts
from hermes.web.requests import WebRequest
from hermes.web.responses import PageError

WINDOW = 50
_LIVE_S = 0.5
_PART_CHARS = 200_000
_MAX_RAW_BYTES = 64 << 20


def show(request: WebRequest) -> Response:
    """A window of the transcript; for htmx only its cards."""
    find = request.text("find", max_chars=200)
    with request.context.reader() as reader:
        head = _head(request, reader)
        at_step = request.integer("step", high=max(0, head.steps - 1)) if head.steps else None
        start = request.integer("from", (at_step or 0) // WINDOW * WINDOW) or 0
        window = reader.window(head, start, WINDOW)
        verdicts = sort_verdicts(reader.ratings(head.header.id), reader.rewards(head.header.id))
        end = window[-1].step.index + 1 if window else start
        cards = make_cards(window, verdicts)
        values: dict[str, Any] = {
            "head": head,
            "cards": cards,
            "live_from": _live_from(cards, end) if head.outcome is None and end >= head.steps else None,
            "words": search_words(find),
            "next_start": end if end < head.steps else None,
            "window_size": WINDOW,
            "find": find,
        }
        if request.from_script:
            return request.page("transcript_window.html", values)
        newer, older = reader.neighbours(head.seq)
        (summary,) = reader.summaries(Filter(ids=(head.header.id,)))
        values |= {
            "summary": summary,
            "verdicts": verdicts,
            "relatives": _sorted_relatives(head, reader.relatives(head)),
            "newer": newer,
            "older": older,
            "matches": reader.find_in(head, find) if find else [],
            "start": start,
            "starts": list(range(0, head.steps, WINDOW)),
        }
    return request.page("transcript.html", values)


def _live_from(cards: list[StepCard], end: int) -> int:
    """The first step that the page has to show again: that of a call whose result is still to come."""
    waits = bool(cards) and any(part.result is None for part in cards[-1].calls)
    return cards[-1].index if waits else end


def events(request: WebRequest) -> Response:
    """Says how many steps a trajectory has, whenever that has changed, until it has ended."""
    with request.context.reader() as reader:
        trajectory_id = _head(request, reader).header.id
    last_state = (request.integer("after", 0) or 0, False)

    def next_event() -> dict[str, Any] | None:
        nonlocal last_state
        with request.context.reader() as reader:
            head = reader.head(trajectory_id)
        state = (head.steps, head.outcome is not None)
        if state == last_state:
            return None
        last_state = state
        return {"steps": head.steps, "ended": head.outcome is not None}

    return request.context.streams.open(next_event, _LIVE_S)


def show_step(request: WebRequest) -> Response:
    """One step in full, a part at a time, with its raw JSON."""
    index = _step_index(request)
    part = request.integer("part", 0, high=1_000_000) or 0
    view = request.choice("view", ("page", "text"))
    with request.context.reader() as reader:
        head = _head(request, reader)
        step = reader.step(head, index)
        raw = _step_json(reader, head, index)
    content = step.message.content
    parts = max(1, -(-len(content) // _PART_CHARS))
    if part >= parts:
        raise PageError(404, f"step {index} has {parts} parts, numbered from 0")
    values = {
        "head": head,
        "step": step,
        "content": content[part * _PART_CHARS : (part + 1) * _PART_CHARS],
        "part": part,
        "parts": parts,
        "calls": [(call, *read_arguments(call)) for call in step.message.tool_calls],
        "raw": raw[:_PART_CHARS],
        "raw_cut": len(raw) > _PART_CHARS,
    }
    only_text = request.from_script and view == "text"
    return request.page("step_text.html" if only_text else "step.html", values)


def show_raw(request: WebRequest) -> Response:
    """The raw JSON of one step, for htmx."""
    with request.context.reader() as reader:
        raw = _step_json(reader, _head(request, reader), _step_index(request))
    return request.page("step_raw.html", {"raw": raw[:_PART_CHARS], "raw_cut": len(raw) > _PART_CHARS})


def download(request: WebRequest) -> Response:
    """The whole trajectory as JSON."""
    with request.context.reader() as reader:
        head = _head(request, reader)
        record = to_record(reader, reader.get(head.header.id), with_inputs=False)
    text = json.dumps(record, ensure_ascii=False, indent=1, default=str)
    body = text.encode("utf-8", "replace")
    if len(body) > _MAX_RAW_BYTES:
        raise PageError(
            413, "the trajectory is too large for a page", f"hermes trajectories show {head.header.id} --json"
        )
    name = f"trajectory-{head.header.id}.json"
    return Response(
        body, media_type="application/json", headers={"content-disposition": f'attachment; filename="{name}"'}
    )


def show_tokens(request: WebRequest) -> Response:
    """The tokens of one model call, coloured by logprob, with the mask that training sees."""
    with request.context.reader() as reader:
        head = _head(request, reader)
        step = reader.step(head, _step_index(request))
    if step.call is None:
        raise PageError(404, f"step {step.index} is not a model call")
    values: dict[str, Any] = {"head": head, "step": step, "view": None}
    if step.call.tokens is not None:
        decode = find_decoder(request.context.home, head.header, step.call.model)
        values["view"] = token_view(step.call.tokens, decode)
    return request.page("step_tokens.html" if request.from_script else "step_tokens_page.html", values)


def show_image(request: WebRequest) -> Response:
    """An image that is part of the record. Only raster formats: nothing that can hold a script."""
    position = request.path_values["position"]
    with request.context.reader() as reader:
        step = reader.step(_head(request, reader), _step_index(request))
    if position >= len(step.message.images):
        raise PageError(404, f"step {step.index} has {len(step.message.images)} images")
    address = step.message.images[position]
    kind = raster_type(address)
    if kind is None:
        raise PageError(404, "this image is not part of the record", "Only its address was recorded.")
    try:
        data = base64.b64decode(address.partition(",")[2], validate=True)
    except (binascii.Error, ValueError) as error:
        raise PageError(422, f"the image is damaged: {error}") from error
    return Response(data, media_type=kind, headers={"cache-control": "private, max-age=86400"})


def show_id(request: WebRequest) -> Response:
    """The full id of a trajectory, for scripts that hold the end of one."""
    with request.context.reader() as reader:
        return PlainTextResponse(reader.resolve(request.path_values["trajectory"]))


def _head(request: WebRequest, reader: BrowseReader) -> TrajectoryHead:
    reference = request.path_values["trajectory"]
    if len(reference) > 64 or not reference.isascii():
        raise PageError(404, "this is no id of a trajectory", "The list of trajectories has all of them.")
    return reader.head(reader.resolve(reference))


def _step_index(request: WebRequest) -> int:
    index: int = request.path_values["step"]
    if index > 10**9:
        raise PageError(404, f"there is no step {index}")
    return index


def _step_json(reader: BrowseReader, head: TrajectoryHead, index: int) -> str:
    from dataclasses import asdict, replace

    from hermes.core import Trajectory

    step = reader.step(head, index)
    record = to_record(reader, Trajectory(head.header, (step,), head.outcome), with_inputs=False)["steps"][0]
    if step.call is not None and step.call.tokens is not None:
        trace = step.call.tokens
        short = replace(trace, prompt_ids=trace.prompt_ids[:64])
        record["call"]["tokens"] = asdict(short) | {"prompt_tokens": len(trace.prompt_ids)}
    return json.dumps(record, ensure_ascii=False, indent=2, default=str)


def _sorted_relatives(head: TrajectoryHead, relatives: list[Summary]) -> dict[str, list[Summary]]:
    """By what they are to this trajectory."""
    header = head.header
    groups: dict[str, list[Summary]] = {
        "parent": [],
        "siblings": [],
        "sub-agents": [],
        "side calls": [],
        "compressed": [],
        "continued": [],
        "retries": [],
    }
    for summary in relatives:
        if summary.id == header.parent_id:
            groups["parent"].append(summary)
        elif summary.relation == Relation.DELEGATE.value and summary.parent_id == header.id:
            groups["sub-agents"].append(summary)
        elif summary.relation == Relation.SIDE.value:
            groups["side calls"].append(summary)
        elif summary.relation == Relation.COMPRESSED.value:
            groups["compressed"].append(summary)
        elif summary.relation == Relation.CONTINUED.value:
            groups["continued"].append(summary)
        elif summary.relation == Relation.RETRY.value:
            groups["retries"].append(summary)
        elif summary.relation is None:
            groups["siblings"].append(summary)
    return {name: members for name, members in groups.items() if members}


_BASE = "/trajectories/{trajectory:str}"
ROUTES = (
    ("GET", _BASE, show),
    ("GET", f"{_BASE}/download", download),
    ("GET", f"{_BASE}/events", events),
    ("GET", f"{_BASE}/id", show_id),
    ("GET", f"{_BASE}/steps/{{step:int}}", show_step),
    ("GET", f"{_BASE}/steps/{{step:int}}/raw", show_raw),
    ("GET", f"{_BASE}/steps/{{step:int}}/tokens", show_tokens),
    ("GET", f"{_BASE}/steps/{{step:int}}/images/{{position:int}}", show_image),
)


_BUNDLED = "smollm2"


def find_decoder(home: Path, header: Header, model: str) -> Decode | None:
    """A path is taken only from the configuration of a run, never from a trajectory."""
    run_model = _run_model(home, header)
    folder = Path(run_model).expanduser()
    if run_model and (folder / "tokenizer.json").is_file():
        return _decoder(folder / "tokenizer.json")
    bundled = models_dir(home) / f"hermes--{_BUNDLED}" / "tokenizer.json"
    if any(_is_bundled(name) for name in (run_model, model, header.model)) and bundled.is_file():
        return _decoder(bundled)
    return None


def _run_model(home: Path, header: Header) -> str:
    """The base model of the run that the trajectory belongs to; empty if there is none."""
    if header.run_id is None:
        return ""
    run = RlRun(home, Path(header.run_id).name)
    try:
        return run.config().run.model if run.config_path.is_file() else ""
    except HermesError:
        return ""


def _is_bundled(model: str) -> bool:
    name = model.rpartition("/")[2].lower()
    return name in ("bundled", _BUNDLED) or name.startswith(f"{_BUNDLED}-135m")


@lru_cache(maxsize=4)
def _decoder(path: Path) -> Decode | None:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer: Any = Tokenizer.from_file(str(path))

    def decode(ids: Sequence[int]) -> list[str]:
        return [_text(tokenizer, token) for token in ids]

    return decode


def _text(tokenizer: Any, token: int) -> str:
    text: str = tokenizer.decode([token], skip_special_tokens=False) if token >= 0 else ""
    return text or f"⟨{token}⟩"
