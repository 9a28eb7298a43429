#!/usr/bin/env python3
"""Search arXiv, read the metadata of papers and write BibTeX entries. It needs Python 3.11 and nothing else.

It promises: at most one request every `--delay` seconds, shared by all processes that use the same cache
folder; an answer is kept on disk and used again for `--cache-hours`; a refused or failed request is repeated
with growing pauses; an error is one sentence on stderr and the exit code 1, never an empty list.
It does not download papers and does not run anything that arXiv sends.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import re
import sys
import time
import unicodedata
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

BASE_URL = "https://export.arxiv.org/api/query"
ATOM = "{http://www.w3.org/2005/Atom}"
ARXIV = "{http://arxiv.org/schemas/atom}"
OPENSEARCH = "{http://a9.com/-/spec/opensearch/1.1/}"
PAGE_LIMIT = 2000
"""Most results that arXiv gives in one answer."""
ANSWER_LIMIT_BYTES = 64_000_000
RETRY_STATUS = frozenset({429, 500, 502, 503, 504})
LONGEST_PAUSE_S = 120.0
SORTS = {"relevance": "relevance", "submitted": "submittedDate", "updated": "lastUpdatedDate"}
ID = re.compile(r"(?:\d{4}\.\d{4,5}|[a-z-]+(?:\.[A-Z]{2})?/\d{7})(?:v\d+)?\Z")

PREFIX = re.compile(r"\A(?:https?://(?:export\.)?arxiv\.org/(?:abs|pdf|html)/|arxiv:)", re.IGNORECASE)


class ArxivError(Exception):
    """A sentence for the user."""


class PassingError(ArxivError):
    """arXiv is busy or cannot be reached: the same request may succeed later."""

    def __init__(self, message: str, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.pause_s = pause_s
        """How long the server wants us to wait; 0 where it does not say."""


@dataclass(frozen=True)
class ArxivPaper:
    """One entry of the feed."""

    id: str
    """With its version: 2305.20050v1."""
    title: str
    authors: list[str]
    abstract: str
    published: str
    """Date of the first version."""
    updated: str
    """Date of this version."""
    primary_category: str
    categories: list[str]
    comment: str
    journal_ref: str
    doi: str
    abs_url: str
    pdf_url: str

    @property
    def plain_id(self) -> str:
        return re.sub(r"v\d+\Z", "", self.id)


@dataclass(frozen=True)
class Feed:
    """One answer of arXiv."""

    total: int
    """How many papers match; the answer may have fewer."""
    papers: list[ArxivPaper]


@dataclass(frozen=True)
class ArxivClient:
    """Asks arXiv; see the module's promises."""

    base_url: str
    cache_dir: Path
    cache_hours: float
    delay_s: float
    retries: int
    timeout_s: float
    offline: bool = False

    def query(self, parameters: dict[str, str]) -> Feed:
        """The parsed answer, from the cache where it is young enough. Raises `ArxivError`."""
        url = f"{self.base_url}?{urllib.parse.urlencode(sorted(parameters.items()))}"
        path = self.cache_dir / (hashlib.sha256(url.encode()).hexdigest() + ".json")
        cached = self._read_cache(path)
        if cached is not None:
            return parse_feed(cached)
        if self.offline:
            raise ArxivError(f"{url} is not in the cache {self.cache_dir}; run it once without --offline")
        text, feed = self._fetch(url)
        write_atomic(path, json.dumps({"url": url, "fetched_s": time.time(), "text": text}))
        return feed

    def _read_cache(self, path: Path) -> str | None:
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            text, age_s = str(entry["text"]), time.time() - float(entry["fetched_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # no entry, or one that another version wrote: asking again is right
        return text if self.offline or 0 <= age_s < self.cache_hours * 3600 else None

    def _fetch(self, url: str) -> tuple[str, Feed]:
        pause_s = self.delay_s
        for attempt in range(self.retries + 1):
            try:
                with self._turn():
                    text = download(url, self.timeout_s)
                feed = parse_feed(text)
                if feed.total > 0 and not feed.papers and "start=0" in url:
                    raise PassingError("arXiv says that papers match, and lists none")
                return text, feed
            except PassingError as error:
                if attempt == self.retries:
                    raise ArxivError(f"{error} ({attempt + 1} attempts). Try again later.") from error
                wait_s = min(max(pause_s, error.pause_s), LONGEST_PAUSE_S)
                sys.stderr.write(f"{error}; next attempt in {wait_s:g} s\n")
                time.sleep(wait_s)
                pause_s = 2 * pause_s
        raise AssertionError("the loop returns or raises")

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One process at a time, and at least `delay_s` after the request before."""
        self.cache_dir.mkdir(parents=True, exist_ok=True)
        with (self.cache_dir / "last-request").open("a+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            age_s = time.time() - os.fstat(stream.fileno()).st_mtime if stream.tell() else self.delay_s
            time.sleep(min(max(self.delay_s - age_s, 0.0), self.delay_s))
            try:
                yield
            finally:
                stream.truncate(0)
                stream.write("x")
                stream.flush()
                os.utime(stream.fileno())


def download(url: str, timeout_s: float) -> str:
    request = urllib.request.Request(url, headers={"User-Agent": "hermes-arxiv-skill/2.0"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            data: bytes = response.read(ANSWER_LIMIT_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise http_error(error) from error
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise PassingError(f"cannot reach {url.partition('?')[0]} ({error})") from error
    if len(data) > ANSWER_LIMIT_BYTES:
        raise ArxivError("the answer is larger than 64 MB; ask for fewer results with --max")
    return data.decode("utf-8", "replace")


def http_error(error: urllib.error.HTTPError) -> ArxivError:
    refusal = refusal_in(error.read(1_000_000).decode("utf-8", "replace"))
    if error.code in RETRY_STATUS:
        after = error.headers.get("Retry-After", "")
        reason = f"arXiv answered {error.code}" + (f" ({refusal})" if refusal else "")
        return PassingError(reason, float(after) if after.isdigit() else 0.0)
    return refusal or ArxivError(f"arXiv refused the query: {error.code} {error.reason}")


def refusal_in(text: str) -> ArxivError | None:
    """arXiv's reason in the body of an error; None: it is a page for people, or empty."""
    try:
        parse_feed(text)
    except PassingError:
        return None
    except ArxivError as refusal:
        return refusal
    return None


def parse_feed(text: str) -> Feed:
    """Reads an Atom feed. arXiv reports a wrong query as an entry of the feed, which is raised."""
    if "<!DOCTYPE" in text[:2000] or "<!ENTITY" in text[:2000]:
        raise ArxivError("the answer is not a feed (it has a document type); is the base URL right?")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise PassingError(f"the answer is not XML ({error})") from error
    if root.tag != f"{ATOM}feed":
        raise ArxivError(f"the answer is not an Atom feed but '{root.tag}'; is the base URL right?")
    entries = root.findall(f"{ATOM}entry")
    for entry in entries:
        if is_refusal(entry):
            raise ArxivError(f"arXiv refused the query: {field(entry, f'{ATOM}summary')}")
    total = field(root, f"{OPENSEARCH}totalResults")
    papers = [parse_entry(entry) for entry in entries if field(entry, f"{ATOM}title")]
    return Feed(int(total) if total.isdigit() else len(papers), papers)


def is_refusal(entry: ElementTree.Element) -> bool:
    """Whether the entry reports an error. Some have the address of a page of the manual as their id."""
    authors = {field(author, f"{ATOM}name") for author in entry.findall(f"{ATOM}author")}
    by_arxiv = field(entry, f"{ATOM}title") == "Error" and authors == {"arXiv api core"}
    return by_arxiv or "/api/errors" in field(entry, f"{ATOM}id")


def parse_entry(entry: ElementTree.Element) -> ArxivPaper:
    identifier = field(entry, f"{ATOM}id").partition("/abs/")[2]
    primary = entry.find(f"{ARXIV}primary_category")
    pdf = [link.get("href", "") for link in entry.findall(f"{ATOM}link") if link.get("title") == "pdf"]
    return ArxivPaper(
        id=identifier,
        title=field(entry, f"{ATOM}title"),
        authors=[field(author, f"{ATOM}name") for author in entry.findall(f"{ATOM}author")],
        abstract=field(entry, f"{ATOM}summary"),
        published=field(entry, f"{ATOM}published")[:10],
        updated=field(entry, f"{ATOM}updated")[:10],
        primary_category=primary.get("term", "") if primary is not None else "",
        categories=[category.get("term", "") for category in entry.findall(f"{ATOM}category")],
        comment=field(entry, f"{ARXIV}comment"),
        journal_ref=field(entry, f"{ARXIV}journal_ref"),
        doi=field(entry, f"{ARXIV}doi"),
        abs_url=f"https://arxiv.org/abs/{identifier}",
        pdf_url=pdf[0].replace("http://", "https://", 1) if pdf else f"https://arxiv.org/pdf/{identifier}",
    )


def field(element: ElementTree.Element, tag: str) -> str:
    """The text of a child on one line, without control characters; '' where there is none."""
    text = " ".join((element.findtext(tag) or "").split())
    return "".join(char for char in text if unicodedata.category(char) != "Cc")


def write_atomic(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def search(
    client: ArxivClient, query: str, *, wanted: int, start: int, page: int, sort: str, ascending: bool
) -> Feed:
    """Up to `wanted` papers, fetched page by page; a paper is listed once."""
    papers: dict[str, ArxivPaper] = {}
    total, position = 0, start
    while len(papers) < wanted:
        size = min(page, wanted - len(papers), PAGE_LIMIT)
        feed = client.query(
            {
                "search_query": query,
                "start": str(position),
                "max_results": str(size),
                "sortBy": SORTS[sort],
                "sortOrder": "ascending" if ascending else "descending",
            }
        )
        total = feed.total
        papers |= {paper.plain_id: paper for paper in feed.papers}
        position += size
        if not feed.papers or position >= total:
            break
    return Feed(total, list(papers.values()))


def get(client: ArxivClient, identifiers: Sequence[str]) -> Feed:
    """The named papers in that order; raises `ArxivError` if one does not exist."""
    ids = [plain_identifier(identifier) for identifier in identifiers]
    feed = client.query({"id_list": ",".join(ids), "start": "0", "max_results": str(len(ids))})
    by_id = {paper.id: paper for paper in feed.papers} | {paper.plain_id: paper for paper in feed.papers}
    missing = [identifier for identifier in ids if identifier not in by_id]
    if missing:
        raise ArxivError(f"arXiv has no paper {', '.join(missing)}; look the id up, do not guess it")
    return Feed(len(ids), [by_id[identifier] for identifier in ids])


def plain_identifier(text: str) -> str:
    """The id in an id, a link or 'arXiv:…'. Raises `ArxivError` for anything else."""
    identifier = PREFIX.sub("", text.strip()).removesuffix(".pdf")
    if not ID.match(identifier):
        raise ArxivError(f"'{text}' is no arXiv id; one looks like 2305.20050, 2305.20050v2 or cs/0112017")
    return identifier


def with_dates(query: str, since: str | None, until: str | None) -> str:
    """The query limited to the time of submission of a paper's first version."""
    if not since and not until:
        return query
    try:
        first = datetime.date.fromisoformat(since or "1991-01-01")
        last = datetime.date.fromisoformat(until) if until else datetime.datetime.now(datetime.UTC).date()
    except ValueError as error:
        raise ArxivError(f"--since and --until take dates such as 2026-01-31 ({error})") from error
    return f"({query}) AND submittedDate:[{first:%Y%m%d}0000 TO {last:%Y%m%d}2359]"


def bibtex(paper: ArxivPaper) -> str:
    """An entry that quotes arXiv's record; a published version has to be looked up by a person."""
    lines = [
        f"  title         = {{{{{latex(paper.title)}}}}},",
        f"  author        = {{{' and '.join(latex(author) for author in paper.authors)}}},",
        f"  year          = {{{paper.published[:4]}}},",
        f"  eprint        = {{{paper.id}}},",
        "  archivePrefix = {arXiv},",
        f"  primaryClass  = {{{paper.primary_category}}},",
        f"  url           = {{{paper.abs_url}}},",
    ]
    lines += [f"  doi           = {{{paper.doi}}},"] if paper.doi else []
    lines += [f"  note          = {{{latex(paper.journal_ref)}}},"] if paper.journal_ref else []
    return "\n".join([f"@misc{{{citation_key(paper)},", *lines, "}"])


def citation_key(paper: ArxivPaper) -> str:
    surname = paper.authors[0].split()[-1] if paper.authors else "anonymous"
    ascii_name = unicodedata.normalize("NFKD", surname).encode("ascii", "ignore").decode()
    words = re.findall(r"[A-Za-z]{4,}", paper.title) or ["paper"]
    name = re.sub(r"[^a-z]", "", ascii_name.lower()) or "anonymous"
    return f"{name}{paper.published[:4]}{words[0].lower()}"


def latex(text: str) -> str:
    """Escapes what breaks a LaTeX run outside of mathematics; formulas between $ are left as they are."""
    parts = re.split(r"(\$[^$]*\$)", text)
    plain = [re.sub(r"(?<!\\)([&%#_])", r"\\\1", part) for part in parts]
    return "".join(parts[index] if index % 2 else plain[index] for index in range(len(parts)))


def as_text(feed: Feed) -> str:
    lines = [f"{len(feed.papers)} of {feed.total}"]
    for paper in feed.papers:
        names = ", ".join(paper.authors[:4]) + (" et al." if len(paper.authors) > 4 else "")
        lines += ["", f"{paper.id}  {paper.published}  {paper.primary_category}"]
        lines += [f"  {paper.title}", f"  {names}"]
        lines += [f"  {paper.journal_ref or paper.comment}"] if paper.journal_ref or paper.comment else []
    return "\n".join(lines)


def default_cache() -> Path:
    home = os.environ.get("HERMES_HOME")
    return (Path(home) if home else Path.home() / ".hermes") / "cache" / "arxiv"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description="Search arXiv; metadata and BibTeX of papers.")
    commands = top.add_subparsers(dest="command", required=True)
    find = commands.add_parser("search", help="papers that match a query")
    find.add_argument("query", help="such as 'ti:\"process reward\" AND cat:cs.LG'")
    find.add_argument("--max", type=int, default=20, dest="wanted", metavar="N", help="most papers (20)")
    find.add_argument("--start", type=int, default=0, metavar="N", help="leave out the first N")
    find.add_argument("--page", type=int, default=100, metavar="N", help="papers a request (100)")
    find.add_argument("--sort", choices=sorted(SORTS), default="relevance")
    find.add_argument("--ascending", action="store_true", help="lowest first")
    find.add_argument("--since", metavar="DATE", help="first version not before this day (2026-01-31)")
    find.add_argument("--until", metavar="DATE", help="first version not after this day")
    lookup = commands.add_parser("get", help="papers by id or link")
    entries = commands.add_parser("bibtex", help="BibTeX entries by id or link")
    for command in (lookup, entries):
        command.add_argument("ids", nargs="+", metavar="ID")
    for command in (find, lookup, entries):
        command.add_argument("--base-url", default=os.environ.get("ARXIV_API_URL", BASE_URL), metavar="URL")
        command.add_argument("--cache-dir", type=Path, default=None, metavar="DIR")
        command.add_argument("--cache-hours", type=float, default=24.0, metavar="H", help="0 asks anew (24)")
        command.add_argument("--delay", type=float, default=3.0, metavar="S", help="between requests (3)")
        command.add_argument("--retries", type=int, default=4, metavar="N", help="after a failure (4)")
        command.add_argument("--timeout", type=float, default=60.0, metavar="S")
        command.add_argument("--offline", action="store_true", help="use the cache only, however old")
    for command in (find, lookup):
        command.add_argument("--json", action="store_true", help="print JSON, with abstracts")
    return top


def run(options: argparse.Namespace) -> str:
    client = ArxivClient(
        base_url=options.base_url,
        cache_dir=options.cache_dir or default_cache(),
        cache_hours=options.cache_hours,
        delay_s=max(options.delay, 0.0),
        retries=max(options.retries, 0),
        timeout_s=options.timeout,
        offline=options.offline,
    )
    if options.command != "search":
        feed = get(client, options.ids)
        if options.command == "bibtex":
            return "\n\n".join(bibtex(paper) for paper in feed.papers)
    else:
        if min(options.wanted, options.page) < 1 or options.start < 0:
            raise ArxivError("--max and --page must be at least 1, and --start at least 0")
        feed = search(
            client,
            with_dates(options.query, options.since, options.until),
            wanted=options.wanted,
            start=options.start,
            page=options.page,
            sort=options.sort,
            ascending=options.ascending,
        )
    if options.json:
        return json.dumps({"total": feed.total, "papers": [asdict(paper) for paper in feed.papers]}, indent=2)
    return as_text(feed)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        sys.stdout.write(run(parser().parse_args(arguments)) + "\n")
    except (ArxivError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
