"""A hub and its dataset viewer on a loopback port, answering in the documented shapes.

    with Site(dataset_pages({"owner/name": some_dataset})) as site: …

The shapes are those of https://huggingface.co/docs/dataset-viewer (/splits, /size, /first-rows, /rows, /info)
and of the hub's /api/datasets/NAME.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fakes.site import Page, Request

Feature = dict[str, Any]
TEXT: Feature = {"dtype": "string", "_type": "Value"}


@dataclass(frozen=True)
class FakeDataset:
    splits: Mapping[tuple[str, str], list[dict[str, Any]]]
    """(config, split) → rows."""
    features: Mapping[str, Feature]
    card: Mapping[str, Any] = field(default_factory=dict)
    token: str | None = None
    """The one token that may read it; None: it is public."""
    viewer_error: tuple[int, str] | None = None
    partial: bool = False


def answer(data: object, status: int = 200) -> Page:
    return Page(json.dumps(data).encode(), "application/json", status)


def dataset_pages(datasets: Mapping[str, FakeDataset]) -> dict[str, Page | Callable[[Request], Page]]:
    pages: dict[str, Page | Callable[[Request], Page]] = {}
    for name, dataset in datasets.items():
        pages[f"/api/datasets/{name}"] = _guarded(dataset, lambda _, n=name, d=dataset: _card(n, d))
    for endpoint, handler in (
        ("splits", _splits),
        ("size", _size),
        ("first-rows", _first_rows),
        ("rows", _rows),
    ):
        pages[f"/{endpoint}"] = _viewer(datasets, handler)
    return pages


Handler = Callable[[str, FakeDataset, dict[str, str]], object]


def _viewer(datasets: Mapping[str, FakeDataset], handler: Handler) -> Callable[[Request], Page]:
    def serve(request: Request) -> Page:
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        dataset = datasets.get(query["dataset"])
        if dataset is None:
            return answer({"error": "The dataset does not exist, or is not accessible."}, 404)
        if dataset.viewer_error is not None:
            status, text = dataset.viewer_error
            return answer({"error": text}, status)
        inner = _guarded(dataset, lambda _: answer(handler(query["dataset"], dataset, query)))
        return inner(request)

    return serve


def _guarded(dataset: FakeDataset, serve: Callable[[Request], Page]) -> Callable[[Request], Page]:
    def checked(request: Request) -> Page:
        if dataset.token is not None and request.headers.get("authorization") != f"Bearer {dataset.token}":
            return answer({"error": "Invalid credentials in Authorization header"}, 401)
        return serve(request)

    return checked


def _card(name: str, dataset: FakeDataset) -> Page:
    return answer({"id": name, "sha": "1" * 40, "gated": False, "private": False, **dataset.card})


def _splits(name: str, dataset: FakeDataset, query: dict[str, str]) -> object:
    listed = [{"dataset": name, "config": config, "split": split} for config, split in dataset.splits]
    return {"splits": listed, "pending": [], "failed": []}


def _size(name: str, dataset: FakeDataset, query: dict[str, str]) -> object:
    splits = [
        {
            "dataset": name,
            "config": config,
            "split": split,
            "num_bytes_parquet_files": len(json.dumps(rows)),
            "num_bytes_memory": len(json.dumps(rows)),
            "num_rows": len(rows),
            "num_columns": len(dataset.features),
        }
        for (config, split), rows in dataset.splits.items()
    ]
    size = {"dataset": {"dataset": name}, "configs": [], "splits": splits}
    return {"size": size, "pending": [], "failed": [], "partial": dataset.partial}


def _first_rows(name: str, dataset: FakeDataset, query: dict[str, str]) -> object:
    return _sliced(dataset, query, 0, 100)


def _rows(name: str, dataset: FakeDataset, query: dict[str, str]) -> object:
    rows = dataset.splits[query["config"], query["split"]]
    page = _sliced(dataset, query, int(query["offset"]), int(query["length"]))
    return {**page, "num_rows_total": len(rows), "num_rows_per_page": 100, "partial": dataset.partial}


def _sliced(dataset: FakeDataset, query: dict[str, str], offset: int, length: int) -> dict[str, Any]:
    rows = dataset.splits[query["config"], query["split"]][offset : offset + length]
    return {
        "features": [
            {"feature_idx": index, "name": name, "type": feature}
            for index, (name, feature) in enumerate(dataset.features.items())
        ],
        "rows": [
            {"row_idx": offset + index, "row": row, "truncated_cells": []} for index, row in enumerate(rows)
        ],
    }
