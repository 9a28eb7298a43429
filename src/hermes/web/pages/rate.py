"""Rating: one key, one decision. The page holds the next item before it is needed.

A decision is an event with an id that the page has made, so that it may be sent again until the server says
that it is saved: it is stored once. Names of models, rewards, lengths and earlier ratings are not shown.
"""

from __future__ import annotations

import getpass
import os
import re
import uuid
from typing import Any
from urllib.parse import quote, unquote, urlencode

from starlette.responses import JSONResponse, RedirectResponse, Response

from hermes.config.paths import db_path
from hermes.core import Rating, Step, StepKind, Trajectory
from hermes.core.rating import RatingDraft
from hermes.data.where import parse
from hermes.disk.files import atomic_write, read_text
from hermes.ratings import QueueRule, QueueSettings, RatingDesk, RatingMode
from hermes.store.browse.reader import BrowseReader, WindowStep
from hermes.store.rating.queues import item_key
from hermes.web.pages.compare import shared_messages
from hermes.web.query import DEFAULT_QUERY, TrajectoryQuery, parse_query
from hermes.web.rating.modes import MODES, ModeView, checked_id, get_mode
from hermes.web.render.transcript import StepCard, StepVerdicts, make_cards
from hermes.web.requests import WebRequest
from hermes.web.responses import PageError

_RATER_COOKIE = "hermes_rater"
_COOKIE_S = 400 * 86_400
_MAX_STEPS = 80
_MAX_BESIDES = 50
_RATER = re.compile(r"[\w .@+-]{1,60}")
_GUIDELINES = "rating-guidelines.md"
_DEFAULT_GUIDELINES = "Judge the work, not its length. Good: the task is done and what is said is true."


def show(request: WebRequest) -> Response:
    queue = request.text("queue", max_chars=200)
    mode = _mode(request, queue)
    query = parse_query(request.text("q", DEFAULT_QUERY))
    rater = _rater(request)
    progress = _desk(request).progress(queue) if queue else None
    with request.context.reader() as reader:
        item = _find_item(request, reader, mode, query, rater)
        counts = reader.rater_counts(rater)
        queues = reader.queue_names()
    values: dict[str, Any] = {
        "mode": mode,
        "modes": list(MODES.values()),
        "item": item,
        "query": query,
        "rater": rater,
        "counts": counts,
        "rated": sum(counts.get(kind.value, 0) for kind in mode.kinds),
        "guidelines": _guidelines(request),
        "event_id": str(uuid.uuid4()),
        "queue": queue,
        "queues": queues,
        "progress": progress,
        "rules": [rule.value for rule in QueueRule],
        "undone": request.text("undone", max_chars=10),
    }
    return request.page("rate.html", values)


def next_item(request: WebRequest) -> Response:
    """The next item as a part of the page; 204 if nothing waits."""
    mode = _mode(request, request.text("queue", max_chars=200))
    query = parse_query(request.text("q", DEFAULT_QUERY))
    with request.context.reader() as reader:
        item = _find_item(request, reader, mode, query, _rater(request))
    if item is None:
        return Response(status_code=204)
    return request.page("rate_item.html", {"item": item, "mode": mode})


def record(request: WebRequest) -> Response:
    """Saves one decision. The response comes when it is on disk."""
    mode = get_mode(request.field("mode"))
    rater = _rater(request)
    queue = request.field("queue", max_chars=200)
    back = f"/rate?{urlencode({'mode': mode.name, 'q': request.field('q'), 'queue': queue})}"
    item = item_key(request.field("trajectory"), request.field("other") or None if mode.pairwise else None)
    if request.field("decision") == "skip":
        if queue:
            _desk(request).release(queue, item, rater, skip=True)
        request.context.leases.skip(mode.name, item, rater)
        return JSONResponse({"skipped": True}) if request.from_script else RedirectResponse(back, 303)
    draft = _draft(request, mode, rater)
    with request.context.reader() as reader:
        reader.head(draft.trajectory_id)
    event = _desk(request).record(draft)
    if queue:
        _desk(request).release(queue, item, rater)
    request.context.leases.release(mode.name, item, rater)
    return JSONResponse({"saved": event.id}) if request.from_script else RedirectResponse(back, 303)


def undo(request: WebRequest) -> Response:
    """Takes back one rating, by default the rater's newest."""
    rater = _rater(request)
    with request.context.reader() as reader:
        target = request.field("event") or reader.last_rating_of(rater)
        if target is None:
            raise PageError(409, f"{rater} has no rating to take back")
        rating = reader.rating(target)
    if rating.rater != rater:
        raise PageError(403, f"{rating.rater} gave this rating", "Only its rater can take it back.")
    if not _is_withdrawn(request, rating):
        _desk(request).undo(rating.id, rater, event_id=checked_id(request.field("id")))
    if request.from_script:
        return JSONResponse({"withdrawn": rating.id})
    mode = next((mode for mode in MODES.values() if rating.kind in mode.kinds), MODES["thumb"])
    address = {"mode": mode.name, "trajectory": rating.trajectory_id, "undone": "1"}
    address |= {"other": rating.other_id} if rating.other_id else {}
    return RedirectResponse(f"/rate?{urlencode(address)}", 303)


def rows(request: WebRequest) -> Response:
    """The rows that the ratings yield so far."""
    with request.context.reader() as reader:
        yielded = request.context.yields.count(reader, request.context.config().home)
    if not request.from_script:
        return request.page("rate_rows_page.html", {"yielded": yielded})
    return request.page("rate_rows.html", {"yielded": yielded})


def make_queue(request: WebRequest) -> Response:
    """A queue with a rule: its order is fixed now, its items are leased to one rater at a time."""
    name = request.field("name", max_chars=100)
    rule, mode = request.field("rule") or "random", get_mode(request.field("mode") or "thumb")
    if rule not in list(QueueRule) or not name:
        raise PageError(400, "a queue needs a name and a rule", f"Rules: {', '.join(QueueRule)}.")
    query = parse_query(request.field("q", max_chars=2000))
    where = tuple(parse(condition.text).text for condition in query.conditions)
    filters = {"text": query.words} if query.words else {}
    settings = QueueSettings(QueueRule(rule), RatingMode(mode.name), where=where, filters=filters)
    if not _desk(request).create_queue(name, settings):
        raise PageError(409, f"nothing new waits for the queue '{name}'", "Choose another rule or query.")
    return RedirectResponse(f"/rate?{urlencode({'queue': name, 'mode': mode.name})}", 303)


def set_rater(request: WebRequest) -> Response:
    name = request.field("rater", max_chars=100)
    if not _RATER.fullmatch(name):
        raise PageError(400, "this cannot be the name of a rater", "1 to 60 letters, digits, spaces or .@+-_")
    response = _back(request)
    response.set_cookie(_RATER_COOKIE, quote(name), max_age=_COOKIE_S, httponly=True, samesite="strict")
    return response


def set_guidelines(request: WebRequest) -> Response:
    atomic_write(request.context.home / _GUIDELINES, request.field("guidelines") + "\n")
    return _back(request)


def _back(request: WebRequest) -> Response:
    return RedirectResponse(f"/rate?mode={get_mode(request.field('mode') or 'thumb').name}", 303)


def _desk(request: WebRequest) -> RatingDesk:
    return RatingDesk(db_path(request.context.home), request.context.writer())


def _mode(request: WebRequest, queue: str) -> ModeView:
    """The mode of the queue, else the one in the address."""
    if queue:
        return get_mode(_desk(request).settings(queue).mode.value)
    return get_mode(request.choice("mode", tuple(MODES)))


def _draft(request: WebRequest, mode: ModeView, rater: str) -> RatingDraft:
    """The decision that the page sends for one key; PageError (400) names what is missing."""
    button = mode.button(request.field("decision", max_chars=100))
    first, second = (request.field(name, max_chars=64) for name in ("trajectory", "other"))
    step = request.form_integer("step")
    if mode.pairwise and not second:
        raise PageError(400, "a pair needs two trajectories")
    if mode.stepwise and step is None:
        raise PageError(400, "the rating of a step needs its index")
    other_id = second if mode.pairwise else None
    return RatingDraft(
        first,
        button.verdict,
        rater,
        other_id=other_id,
        step_index=step if mode.stepwise else None,
        per_step=mode.stepwise,
        strength=button.strength,
        comment=request.field("comment"),
        elapsed_ms=_elapsed_ms(request),
        shown_first=first if mode.pairwise else None,
        queue=request.field("queue", max_chars=200) or None,
        item=item_key(first, other_id),
        id=checked_id(request.field("id", max_chars=100)),
    )


def _elapsed_ms(request: WebRequest) -> float | None:
    elapsed = request.form_integer("elapsed_ms", None, 0, 10**9)
    return None if elapsed is None else float(elapsed)


def _is_withdrawn(request: WebRequest, rating: Rating) -> bool:
    with request.context.reader() as reader:
        return all(counted.id != rating.id for counted in reader.ratings_about(rating.trajectory_id))


def _find_item(
    request: WebRequest, reader: BrowseReader, mode: ModeView, query: TrajectoryQuery, rater: str
) -> dict[str, Any] | None:
    """The item that the address names, else one that waits."""
    kept_items = request.texts("besides")[:_MAX_BESIDES]
    first, second = (request.text(name, max_chars=64) for name in ("trajectory", "other"))
    if first and (second or not mode.pairwise):
        second_id = reader.resolve(second) if mode.pairwise else None
        return make_item(reader, mode, reader.resolve(first), second_id)
    if queue := request.text("queue", max_chars=200):
        return _queue_item(request, reader, mode, queue, rater, tuple(kept_items))
    besides = request.context.leases.unavailable(mode.name, rater)
    besides.update(kept_items)
    conditions, seed = query.sql, int.from_bytes(os.urandom(6))
    ids: tuple[str, str | None] | None
    if mode.pairwise:
        pair = reader.draw_pair(conditions, rater, besides, seed)
        ids = None if pair is None else (pair.first, pair.second)
    else:
        drawn = reader.draw(conditions, rater, [kind.value for kind in mode.kinds], besides, seed)
        ids = None if drawn is None else (drawn, None)
    if ids is None:
        return None
    request.context.leases.take(mode.name, item_key(*ids), rater)
    return make_item(reader, mode, *ids)


def _queue_item(
    request: WebRequest,
    reader: BrowseReader,
    mode: ModeView,
    queue: str,
    rater: str,
    besides: tuple[str, ...],
) -> dict[str, Any] | None:
    item = _desk(request).next_item(queue, rater, besides)
    if item is None:
        return None
    ids = (item.trajectory_id, item.other_id)
    if item.other_id is not None and item.shown_first == item.other_id:
        ids = (item.other_id, item.trajectory_id)
    return make_item(reader, mode, *ids)


def make_item(reader: BrowseReader, mode: ModeView, first: str, second: str | None) -> dict[str, Any]:
    """The parts of an item that the page shows: blind, the common beginning apart."""
    trajectories = [reader.get(first), *([reader.get(second)] if second is not None else [])]
    shared = shared_messages(trajectories) if second is not None else 0
    conversations = [[step for step in trajectory.steps if not step.ephemeral] for trajectory in trajectories]
    return {
        "key": item_key(first, second),
        "trajectory": first,
        "other": second or "",
        "task": _task(trajectories[0]),
        "shared": _cards(conversations[0][:shared]),
        "columns": [_cards(steps[shared:]) for steps in conversations],
        "left_out": [max(0, len(steps) - shared - _MAX_STEPS) for steps in conversations],
        "steps": _answers(conversations[0]) if mode.stepwise else [],
    }


def _answers(steps: list[Step]) -> list[int]:
    return [step.index for step in steps if step.kind is StepKind.MODEL]


def _cards(steps: list[Step]) -> list[StepCard]:
    """The first steps and the last ones, if there are very many."""
    shown = steps if len(steps) <= _MAX_STEPS else [*steps[: _MAX_STEPS // 2], *steps[-_MAX_STEPS // 2 :]]
    return make_cards([WindowStep(step, False) for step in shown], StepVerdicts())


def _task(trajectory: Trajectory) -> str:
    for step in trajectory.steps:
        if step.message.role == "user" and not step.ephemeral:
            return step.message.content[:2000]
    return ""


def _rater(request: WebRequest) -> str:
    for part in request.headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == _RATER_COOKIE and _RATER.fullmatch(unquote(value)):
            return unquote(value)
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "person"


def _guidelines(request: WebRequest) -> str:
    return (read_text(request.context.home / _GUIDELINES) or _DEFAULT_GUIDELINES).strip()


ROUTES = (
    ("GET", "/rate", show),
    ("POST", "/rate", record),
    ("GET", "/rate/item", next_item),
    ("POST", "/rate/undo", undo),
    ("GET", "/rate/rows", rows),
    ("POST", "/rate/queues", make_queue),
    ("POST", "/rate/rater", set_rater),
    ("POST", "/rate/guidelines", set_guidelines),
)
