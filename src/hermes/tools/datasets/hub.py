"""A dataset of the hub: its card, its splits and some of its rows, without downloading it.

Requests go to two configured addresses: the hub (`/api/datasets/NAME`) and its dataset viewer
(`/splits`, `/size`, `/first-rows`, `/rows`). The model chooses a name, never an address. Requests go through
`safety.fetch`, so a redirect cannot lead to a private address, and HF_TOKEN is sent to these two addresses
only, never to one that they redirect to. If the viewer has no data, the hub's card is still reported.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from hermes.core import JSON, JSONObject, ToolErrorKind
from hermes.errors import ToolError
from hermes.safety.text import clip
from hermes.tools.datasets.view import ColumnInfo, DatasetView, SplitInfo, choose_split, feature_type

if TYPE_CHECKING:
    from hermes.config.settings import Settings
    from hermes.safety.fetch import FetchedPage

TOKEN = "HF_TOKEN"
TIMEOUT_S = 30.0
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)
_DESCRIPTION_CHARS = 600
_MAX_FILES = 40
_FACTS = {"lastModified": "last_modified", "downloads": "downloads", "gated": "gated", "private": "private"}


class _ViewerError(Exception):
    """The dataset viewer has no data for this dataset; the text is the reason."""


@dataclass(frozen=True, slots=True)
class DatasetHub:
    """The hub as it is configured."""

    settings: Settings
    environ: Mapping[str, str]

    @property
    def url(self) -> str:
        """hub.url; where that is not set, HF_ENDPOINT, which all libraries of the hub follow."""
        endpoint = self.environ.get("HF_ENDPOINT") if self._is_default("url") else None
        return (endpoint or self.settings.hub.url).rstrip("/")

    def _is_default(self, field: str) -> bool:
        hub = self.settings.hub
        return bool(getattr(hub, field) == type(hub).model_fields[field].default)

    async def inspect(
        self, name: str, config: str | None, split: str | None, offset: int, limit: int
    ) -> DatasetView:
        if not _NAME.fullmatch(name) or ".." in name:
            raise ToolError(
                f"'{name}' is no name of a hub dataset. Names are owner/name, such as openai/gsm8k; "
                "a file of the workspace is given as path.",
                kind="bad_arguments",
            )
        card = await self._card(name)
        view = DatasetView(name, _about(card), (), None, offset)
        try:
            splits, notes = await self._splits(name)
        except _ViewerError as error:
            files = [str(entry.get("rfilename")) for entry in _objects(card.get("siblings"))]
            more = [f"{len(files) - _MAX_FILES} more files are not listed"] if len(files) > _MAX_FILES else []
            about = {**view.about, "files": files[:_MAX_FILES]}
            return replace(view, about=about, notes=(f"rows cannot be shown: {error}", *more))
        selected = choose_split(splits, config, split)
        view = replace(view, splits=splits, shown=selected, notes=notes)
        try:
            return await self._rows(view, selected, limit)
        except _ViewerError as error:
            return replace(view, notes=(*notes, f"rows cannot be shown: {error}"))

    async def _card(self, name: str) -> JSONObject:
        hub = self.url
        fetched = await self._fetch(f"{hub}/api/datasets/{quote(name, safe='/')}")
        page = f"{hub}/datasets/{name}"
        if fetched.status in (401, 403, 404):
            token = f"{TOKEN} is set" if self.environ.get(TOKEN) else f"{TOKEN} is not set"
            raise ToolError(
                f"the hub shows no dataset '{name}' ({fetched.status}): the name is wrong, or the dataset is "
                f"private or gated. {token}. Check the name; for a gated dataset the user accepts its terms "
                f"at {page} and sets a token: hermes config set {TOKEN} …"
            )
        if fetched.status != 200:
            raise ToolError(f"{fetched.url} answered {fetched.status}{_wait(fetched.status)}")
        return _object(fetched)

    async def _splits(self, name: str) -> tuple[list[SplitInfo], tuple[str, ...]]:
        listing, sizes = await asyncio.gather(
            self._viewer("splits", dataset=name), self._sizes(name), return_exceptions=True
        )
        if isinstance(listing, BaseException):
            raise listing
        size_of: dict[tuple[str, str], JSONObject] = {}
        notes: list[str] = []
        if isinstance(sizes, _ViewerError):
            notes.append(f"sizes are not known: {sizes}")
        elif isinstance(sizes, BaseException):
            raise sizes
        else:
            measured, partial = sizes
            size_of = {(str(entry.get("config")), str(entry.get("split"))): entry for entry in measured}
            if partial:
                notes.append("the dataset is so large that rows and sizes are lower bounds")
        names = [(str(entry["config"]), str(entry["split"])) for entry in _objects(listing.get("splits"))]
        for state in ("pending", "failed"):
            if listing.get(state):
                notes.append(f"{len(listing[state])} configurations are {state} and not listed")
        if not names:
            raise _ViewerError("the dataset viewer lists no splits (yet)")
        splits = [
            SplitInfo(
                config,
                split,
                size_of.get((config, split), {}).get("num_rows"),
                size_of.get((config, split), {}).get("num_bytes_parquet_files"),
            )
            for config, split in names
        ]
        return splits, tuple(notes)

    async def _sizes(self, name: str) -> tuple[list[JSONObject], bool]:
        data = await self._viewer("size", dataset=name)
        size = data.get("size")
        return _objects(size.get("splits") if isinstance(size, dict) else None), bool(data.get("partial"))

    async def _rows(self, view: DatasetView, selected: SplitInfo, limit: int) -> DatasetView:
        query = {"dataset": view.dataset, "config": selected.config or "", "split": selected.split}
        if view.offset == 0:
            # The first rows are also available for datasets without a Parquet export.
            data = await self._viewer("first-rows", **query)
        else:
            data = await self._viewer("rows", **query, offset=str(view.offset), length=str(limit))
        entries = _objects(data.get("rows"))[:limit]
        notes = list(view.notes)
        truncated = {cell for entry in entries for cell in entry.get("truncated_cells") or ()}
        if truncated:
            notes.append(f"the viewer shortened cells of: {', '.join(sorted(map(str, truncated)))}")
        return replace(
            view,
            columns=[
                ColumnInfo(str(feature.get("name")), feature_type(feature.get("type")))
                for feature in _objects(data.get("features"))
            ],
            rows=[entry["row"] for entry in entries if isinstance(entry.get("row"), dict)],
            notes=tuple(notes),
        )

    async def _viewer(self, endpoint: str, **query: str) -> JSONObject:
        """A response of the dataset viewer; _ViewerError if it has none for this dataset."""
        if self.url != self.settings.hub.url and self._is_default("viewer_url"):
            raise _ViewerError(
                f"HF_ENDPOINT names the hub {self.url}; set hub.viewer_url to its dataset viewer"
            )
        fetched = await self._fetch(f"{self.settings.hub.viewer_url}/{endpoint}?{urlencode(query)}")
        if fetched.status != 200:
            raise _ViewerError(
                f"the dataset viewer answered {fetched.status} to /{endpoint}"
                f"{_reason(fetched)}{_wait(fetched.status)}"
            )
        return _object(fetched)

    async def _fetch(self, url: str) -> FetchedPage:
        from hermes.safety.fetch import fetch

        token = self.environ.get(TOKEN)
        try:
            return await fetch(
                url,
                # The address is the user's setting: a private hub may be on a private network.
                allow_hosts=(*self.settings.web.allow_hosts, urlsplit(url).netloc),
                max_bytes=self.settings.web.max_bytes,
                timeout_s=TIMEOUT_S,
                headers={"Authorization": f"Bearer {token}"} if token else {},
            )
        except ToolError as error:
            if error.kind == ToolErrorKind.REFUSED:
                raise
            advice = "Is the hub reachable from here? A file of the workspace can be given as path."
            raise ToolError(f"{error.message} {advice}", kind=error.kind) from error


def _about(card: JSONObject) -> JSONObject:
    metadata = card.get("cardData")
    metadata = metadata if isinstance(metadata, dict) else {}
    facts = {
        name: metadata[name] for name in ("license", "language", "task_categories") if metadata.get(name)
    }
    facts |= {name: card[key] for key, name in _FACTS.items() if card.get(key)}
    if isinstance(card.get("description"), str):
        facts["description"] = clip(" ".join(card["description"].split()), _DESCRIPTION_CHARS)
    return {name: value for name, value in facts.items() if len(json.dumps(value)) <= 2 * _DESCRIPTION_CHARS}


def _object(fetched: FetchedPage) -> JSONObject:
    try:
        data = json.loads(fetched.body)
    except ValueError as error:
        raise ToolError(f"{fetched.url} answered with something that is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ToolError(f"{fetched.url} answered with something that is no JSON object")
    return data


def _objects(value: JSON) -> list[JSONObject]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _reason(fetched: FetchedPage) -> str:
    """The `error` field of a failed request, if it has one."""
    try:
        data = json.loads(fetched.body)
    except ValueError:
        return ""
    text = data.get("error") if isinstance(data, dict) else None
    return f": {clip(text, 300)}" if isinstance(text, str) else ""


def _wait(status: int) -> str:
    if status == 429:
        return " (too many requests: wait a minute, then try again)"
    return " (it may be preparing an answer: try again later)" if status >= 500 else ""
