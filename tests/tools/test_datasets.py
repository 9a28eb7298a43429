"""dataset_inspect against a hub on loopback, and against files that the `datasets` library reads too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes.safety.approval import ApprovalPolicy, PolicyApprover
from hermes.tools.base import Workbench
from hermes.tools.datasets import files
from hermes.tools.datasets.files import split_of
from hermes.tools.datasets.view import MAX_CHARS, DatasetView, SplitInfo, feature_type, to_text
from tests.fakes.dataset_viewer import TEXT, FakeDataset, answer, dataset_pages
from tests.fakes.site import Site, redirect
from tests.tools.bench import error, text
from tests.tools.services import open_service_bench

LABEL = {"names": ["easy", "hard"], "_type": "ClassLabel"}
STEPS = {"feature": TEXT, "_type": "List"}
TOKEN = "hf_0123456789abcdefghijklmnopqrstuvwxyz"


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"question": f"What is {n} + 1?", "steps": [f"{n} + 1"], "level": n % 2} for n in range(count)]


def maths(**changes: Any) -> FakeDataset:
    splits = {("main", "train"): rows_of(120), ("main", "test"): rows_of(7), ("socratic", "test"): rows_of(3)}
    features = {"question": TEXT, "steps": STEPS, "level": LABEL}
    card = {"cardData": {"license": "mit"}, "downloads": 12, "description": "Sums.\n\nMany  of them."}
    return FakeDataset(**{"splits": splits, "features": features, "card": card, **changes})


@asynccontextmanager
async def hub_bench(tmp_path: Path, site: Site, **environ: str) -> AsyncIterator[Workbench]:
    settings = {"hub.url": site.url("").rstrip("/"), "hub.viewer_url": site.url("").rstrip("/")}
    async with open_service_bench(tmp_path, settings, environ) as bench:
        yield bench


async def inspect(bench: Workbench, **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await text(bench, "dataset_inspect", **arguments))
    return found


async def test_a_dataset_of_the_hub_is_described_by_its_splits_columns_and_first_rows(tmp_path: Path) -> None:
    with Site(dataset_pages({"owner/maths": maths()})) as site:
        async with hub_bench(tmp_path, site) as bench:
            view = await inspect(bench, dataset="owner/maths")
            second = await inspect(
                bench, dataset="owner/maths", config="main", split="train", offset=100, rows=2
            )
    assert (view["license"], view["downloads"]) == ("mit", 12)
    assert view["description"] == "Sums. Many of them."
    assert [(split["config"], split["split"], split["rows"]) for split in view["splits"]] == [
        ("main", "train", 120),
        ("main", "test", 7),
        ("socratic", "test", 3),
    ]
    assert view["shown"] == {"config": "main", "split": "train", "offset": 0}
    assert view["columns"] == {
        "question": "string",
        "steps": "list[string]",
        "level": "class label (easy, hard)",
    }
    assert view["rows"] == rows_of(3)
    assert second["rows"] == rows_of(102)[100:]
    assert "notes" not in view


async def test_the_token_goes_to_the_hub_and_never_to_where_it_redirects(tmp_path: Path) -> None:
    dataset = maths(token=TOKEN)
    with Site(dataset_pages({"owner/maths": dataset})) as elsewhere, Site() as site:
        site.pages.update(dataset_pages({"owner/maths": dataset}))
        site.pages["/size"] = redirect(elsewhere.url("/size?dataset=owner/maths"))
        settings = {
            "hub.url": site.url("").rstrip("/"),
            "hub.viewer_url": site.url("").rstrip("/"),
            "web.allow_hosts": [elsewhere.host],
        }
        async with open_service_bench(tmp_path, settings, {"HF_TOKEN": TOKEN}) as bench:
            view = await inspect(bench, dataset="owner/maths")
    assert {request.headers.get("authorization") for request in site.requests} == {f"Bearer {TOKEN}"}
    assert elsewhere.requests and all(
        "authorization" not in request.headers for request in elsewhere.requests
    )
    assert view["rows"] == rows_of(3)
    assert "sizes are not known: the dataset viewer answered 401" in view["notes"][0]
    assert TOKEN not in json.dumps(view)


async def test_a_redirect_to_a_private_address_is_refused(tmp_path: Path) -> None:
    with Site() as inside, Site() as site:
        site.pages["/api/datasets/owner/maths"] = redirect(inside.url("/secret"))
        async with hub_bench(tmp_path, site) as bench:
            kind, message = await error(bench, "dataset_inspect", dataset="owner/maths")
    assert kind == "refused" and "not a public address" in message
    assert inside.requests == []


async def test_a_dataset_that_cannot_be_seen_says_what_to_do(tmp_path: Path) -> None:
    with Site(dataset_pages({"owner/gated": maths(token=TOKEN)})) as site:
        async with hub_bench(tmp_path, site) as bench:
            _, gated = await error(bench, "dataset_inspect", dataset="owner/gated")
            _, missing = await error(bench, "dataset_inspect", dataset="owner/none")
    assert "private or gated" in gated and "HF_TOKEN is not set" in gated
    assert "accepts its terms" in gated and "hermes config set HF_TOKEN" in gated
    assert "(404): the name is wrong" in missing


async def test_where_the_viewer_fails_the_hub_is_still_reported(tmp_path: Path) -> None:
    card = {"siblings": [{"rfilename": "data/a.jsonl"}, {"rfilename": "README.md"}]}
    broken = maths(card=card, viewer_error=(500, "The dataset generation failed"))
    with Site(dataset_pages({"owner/broken": broken})) as site:
        async with hub_bench(tmp_path, site) as bench:
            view = await inspect(bench, dataset="owner/broken")
    assert view["files"] == ["data/a.jsonl", "README.md"] and view["splits"] == []
    assert "The dataset generation failed" in view["notes"][0] and "try again later" in view["notes"][0]
    assert "rows" not in view


async def test_a_partial_dataset_and_busy_servers_are_said_to_be_that(tmp_path: Path) -> None:
    with Site(dataset_pages({"owner/large": maths(partial=True)})) as site:
        site.pages["/api/datasets/owner/busy"] = answer({"error": "slow down"}, 429)
        async with hub_bench(tmp_path, site) as bench:
            view = await inspect(bench, dataset="owner/large", rows=0)
            _, busy = await error(bench, "dataset_inspect", dataset="owner/busy")
    assert view["rows"] == [] and "lower bounds" in view["notes"][0]
    assert "429" in busy and "wait a minute" in busy


async def test_wrong_names_are_answered_with_the_right_ones(tmp_path: Path) -> None:
    with Site(dataset_pages({"owner/maths": maths()})) as site:
        async with hub_bench(tmp_path, site) as bench:
            _, config = await error(bench, "dataset_inspect", dataset="owner/maths", config="man")
            _, split = await error(bench, "dataset_inspect", dataset="owner/maths", split="dev")
            requests = len(site.requests)
            for name in ("../../etc", "owner/a/b", "http://127.0.0.1/x", "owner/..", "a?b=c"):
                kind, message = await error(bench, "dataset_inspect", dataset=name)
                assert kind == "bad_arguments" and "owner/name" in message
            assert len(site.requests) == requests, "no request is made for a name that cannot be one"
            kind, both = await error(bench, "dataset_inspect", dataset="owner/maths", path="x.jsonl")
            assert kind == "bad_arguments" and "either dataset" in both
            _, neither = await error(bench, "dataset_inspect")
            assert neither == both
    assert config == "there is no configuration 'man'; there are: main, socratic"
    assert split == "there is no split 'dev' in the configuration 'main'; there are: train, test"


async def test_the_hub_that_hf_endpoint_names_is_asked(tmp_path: Path) -> None:
    with Site(dataset_pages({"owner/maths": maths(token=TOKEN)})) as site:
        environ = {"HF_ENDPOINT": site.url(""), "HF_TOKEN": TOKEN}
        async with open_service_bench(tmp_path, {}, environ) as bench:
            view = await inspect(bench, dataset="owner/maths")
        asked = [request.path for request in site.requests]
    assert view["downloads"] == 12 and asked == ["/api/datasets/owner/maths"]
    assert "set hub.viewer_url to its dataset viewer" in view["notes"][0]


async def test_a_hub_that_cannot_be_reached_says_so(tmp_path: Path) -> None:
    with Site() as site:
        address = site.url("").rstrip("/")
    async with open_service_bench(tmp_path, {"hub.url": address, "hub.viewer_url": address}) as bench:
        _, message = await error(bench, "dataset_inspect", dataset="owner/maths")
    assert f"{address}/api/datasets/owner/maths cannot be fetched" in message
    assert "can be given as path" in message


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
async def test_files_of_the_datasets_library_can_be_looked_at(tmp_path: Path, kind: str) -> None:
    import datasets  # type: ignore[import-untyped]

    table = datasets.Dataset.from_list(rows_of(30))
    async with open_service_bench(tmp_path) as bench:
        work = tmp_path / "workspace"
        if kind == "parquet":
            table.to_parquet(work / "test-00000-of-00001.parquet")
        else:
            table.save_to_disk(str(work / "test"))
        name = "test-00000-of-00001.parquet" if kind == "parquet" else "test/data-00000-of-00001.arrow"
        view = await inspect(bench, path=name, rows=2, offset=28)
    assert (view["splits"][0]["rows"], view["rows"]) == (30, rows_of(30)[28:])
    assert view["columns"]["question"] == "string" and "list" in view["columns"]["steps"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"q": "x", "n": 1}\n\n{"q": "y", "n": null}\n'),
        ("a.json", '[{"q": "x", "n": 1}, {"q": "y", "n": null}]'),
    ],
)
async def test_a_single_file_is_a_split(tmp_path: Path, name: str, content: str) -> None:
    async with open_service_bench(tmp_path) as bench:
        (tmp_path / "workspace" / name).write_text(content)
        view = await inspect(bench, path=name)
    assert view["splits"] == [{"split": "train", "rows": 2, "size_bytes": len(content)}]
    assert view["columns"] == {"q": "string", "n": "int or null"}
    assert view["rows"] == [{"q": "x", "n": 1}, {"q": "y", "n": None}]


async def test_files_that_are_no_datasets_say_where_and_why(tmp_path: Path) -> None:
    async with open_service_bench(tmp_path) as bench:
        work = tmp_path / "workspace"
        (work / "bad.jsonl").write_text('{"a": 1}\n{oops\n')
        (work / "bad.parquet").write_bytes(b"PAR1 no")
        (work / "notes.txt").write_text("x")
        (work / "empty").mkdir()
        messages = {
            name: (await error(bench, "dataset_inspect", path=name))[1]
            for name in ("bad.jsonl", "bad.parquet", "notes.txt", "empty", "none.csv", "~/x.csv")
        }
    assert "line 2" in messages["bad.jsonl"] and "cannot be read" in messages["bad.parquet"]
    assert ".parquet" in messages["notes.txt"] and "empty" in messages["empty"]
    assert messages["none.csv"] == "'none.csv' does not exist" and "not expanded" in messages["~/x.csv"]


async def test_a_path_outside_the_workspace_needs_permission(tmp_path: Path) -> None:
    outside = tmp_path / "outside.jsonl"
    outside.write_text('{"a": 1}\n')
    policy = ApprovalPolicy((), (), interactive=False, isolated=False, workspace=str(tmp_path / "workspace"))
    async with open_service_bench(tmp_path, approver=PolicyApprover(policy, None)) as bench:
        kind, _ = await error(bench, "dataset_inspect", path=str(outside))
    assert kind == "refused"


async def test_large_files_are_read_in_part_and_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 4_000)
    async with open_service_bench(tmp_path) as bench:
        (tmp_path / "workspace" / "test.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(300)))
        whole = await inspect(bench, path="test.jsonl")
        monkeypatch.setattr(files, "MAX_BYTES", 100)
        part = await inspect(bench, path="test.jsonl", rows=1)
    assert whole["splits"][0]["rows"] == 300
    assert part["rows"] == [{"n": 0}] and part["splits"][0]["rows"] is None
    assert "only the first 100 bytes" in part["notes"][0]


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train-00000-of-00002.parquet", "train"),
        ("dev.jsonl", "validation"),
        ("my_eval_set.csv", "test"),
        ("latest.jsonl", "train"),
        ("rows.jsonl", "train"),
    ],
)
def test_the_split_of_a_file_is_in_its_name(path: str, split: str) -> None:
    assert split_of(path) == split


@pytest.mark.parametrize("columns", [3, 500])
def test_whatever_the_rows_hold_the_text_is_bounded_json(columns: int) -> None:
    deep: Any = "end"
    for _ in range(40):
        deep = {"in": deep}
    row = {f"column {n}": "long " * 5_000 if n % 2 else [deep] * 400 for n in range(columns)}
    shown = SplitInfo(None, "train", 20, None)
    from hermes.tools.datasets.view import value_types

    view = DatasetView("d", {}, [shown] * 200, shown, 0, value_types([row]), [row] * 20)
    content = to_text(view)
    assert len(content) <= MAX_CHARS
    data = json.loads(content)
    assert any("splits are not listed" in note for note in data["notes"])
    assert columns == 3 or any("columns are not shown" in note for note in data["notes"])


def test_types_are_named_in_a_word_or_a_few() -> None:
    assert feature_type([{"a": TEXT}]) == "list[{a: string}]"
    assert feature_type({"_type": "Image"}) == "image"
    assert (
        feature_type({"feature": {"dtype": "int64", "_type": "Value"}, "_type": "Sequence"}) == "list[int64]"
    )
    many = feature_type({"names": [str(n) for n in range(50)], "_type": "ClassLabel"})
    assert many.endswith("11, …)")
