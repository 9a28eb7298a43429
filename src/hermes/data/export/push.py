"""Upload to the hub. Every byte is searched for secrets first, and one hit stops the upload.

The search reads the files themselves: lines of JSON, columns of tables, manifest, card and configurations,
at the strictest level whatever the level of the export. Nothing is sent before all of them have passed.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hermes.core import JSON, JSONObject
from hermes.data.export import card
from hermes.data.export.sink import TABLES
from hermes.data.formats.base import Format
from hermes.data.redaction.redact import RedactionLevel, Scrubber
from hermes.errors import HermesError, MissingDependencyError, UsageError
from hermes.safety.redact import Redactor

Content = tuple[str, bytes | Path]
"""A name in the repository, and the content or the file for it."""


class Leak(NamedTuple):
    where: str
    """File and row, from 1."""
    rules: tuple[str, ...]


def push(
    repo: str,
    files: Sequence[Path],
    facts: JSONObject,
    form: Format,
    *,
    redactor: Redactor,
    private: bool,
    token: str | None,
    endpoint: str | None = None,
) -> str:
    """Uploads the files with a card in one commit and returns the dataset's address."""
    contents = _all_contents(repo, files, facts, form)
    leaks = list(find_leaks(contents, redactor))
    if leaks:
        raise HermesError(
            f"not pushed: {_summary(leaks)}",
            "export with --redact shapes, or take those trajectories out; then push again",
        )
    return _upload(repo, contents, private=private, token=token, endpoint=endpoint)


@dataclass(frozen=True, slots=True)
class PushDescription:
    """Describes what `push` would send."""

    sizes: dict[str, int]
    """Bytes by file."""
    secrets: str | None
    """The reason that would stop it; None: nothing that looks like a secret."""
    card: str

    def to_json(self) -> JSONObject:
        return {"files": self.sizes, "secrets": self.secrets, "card": self.card}


def describe(
    repo: str, files: Sequence[Path], facts: JSONObject, form: Format, redactor: Redactor
) -> PushDescription:
    contents = _all_contents(repo, files, facts, form)
    leaks = list(find_leaks(contents, redactor))
    sizes = {
        name: len(content) if isinstance(content, bytes) else content.stat().st_size
        for name, content in contents
    }
    return PushDescription(sizes, _summary(leaks) if leaks else None, card.render(repo, facts, form))


def _all_contents(repo: str, files: Sequence[Path], facts: JSONObject, form: Format) -> list[Content]:
    if repo.count("/") != 1:
        raise UsageError(f"'{repo}' is not a repository", "write it as OWNER/NAME")
    return [*_contents(files), ("README.md", card.render(repo, facts, form).encode("utf-8"))]


def find_leaks(contents: Iterable[Content], redactor: Redactor) -> Iterator[Leak]:
    """Everything in the files that the strictest redaction would remove."""
    for name, content in contents:
        for number, value in enumerate(_values(name, content), 1):
            scrubber = Scrubber(redactor, RedactionLevel.SHAPES)
            scrubber.json(value)
            if scrubber.report.hits:
                yield Leak(f"{name} row {number}", tuple(sorted(scrubber.report.hits)))


def _values(name: str, content: bytes | Path) -> Iterator[JSON]:
    """The rows of a data file, the lines of any other."""
    suffix = Path(name).suffix
    if suffix in TABLES:
        yield from _table_rows(content, arrow=TABLES[suffix])
        return
    with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as file:
        for line in file:
            text = line.decode("utf-8", "replace")
            try:
                yield json.loads(text)
            except ValueError:
                yield text


def _table_rows(content: bytes | Path, *, arrow: bool) -> Iterator[JSONObject]:
    import pyarrow.ipc  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    source = str(content) if isinstance(content, Path) else io.BytesIO(content)
    if arrow:
        batches = iter(pyarrow.ipc.open_stream(source))
    else:
        batches = pyarrow.parquet.ParquetFile(source).iter_batches(batch_size=64)
    for batch in batches:
        yield from batch.to_pylist()


def _contents(files: Sequence[Path]) -> Iterator[Content]:
    """Names in the repository and their files; folders file by file."""
    for path in files:
        if path.is_dir():
            yield from ((f"{path.name}/{inner.name}", inner) for inner in sorted(path.iterdir()))
        else:
            yield path.name, path


def _summary(leaks: Sequence[Leak]) -> str:
    counted = Counter(rule for leak in leaks for rule in leak.rules)
    rules = ", ".join(f"{rule} in {count} rows" for rule, count in sorted(counted.items()))
    return f"{len(leaks)} rows look as if they held secrets ({rules}); the first: {leaks[0].where}"


def _upload(
    repo: str,
    contents: Sequence[Content],
    *,
    private: bool,
    token: str | None,
    endpoint: str | None,
) -> str:
    try:
        import httpx2
        from huggingface_hub import CommitOperationAdd, HfApi
    except ImportError as error:
        raise MissingDependencyError("huggingface_hub", "export", "Pushing to the hub") from error
    api = HfApi(endpoint=endpoint, token=token or False)
    operations = [
        CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
        for name, content in contents
    ]
    try:
        api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
        api.create_commit(repo, operations, commit_message="Export by Hermes", repo_type="dataset")
    except httpx2.TransportError as error:
        raise HermesError(
            f"the hub at {api.endpoint} cannot be reached: {error}",
            "check the network, a proxy and HF_ENDPOINT, then push again; the files are written",
        ) from error
    except (httpx2.HTTPError, OSError, ValueError) as error:
        raise HermesError(
            f"the hub did not take {repo}: {str(error).splitlines()[0]}",
            "set HF_TOKEN to a token that may write there ('hermes config set HF_TOKEN …'), then push again",
        ) from error
    return f"{api.endpoint}/datasets/{repo}"
