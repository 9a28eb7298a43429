"""The Python registry, as pip is configured for this interpreter: versions and files of a package.

Only the simple API (PEP 503 and 691) is used, and files are read into the cache after their hash was
compared. Nothing of a package is executed: `pip download` would run the build of a source distribution.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from hermes.core import new_id
from hermes.disk.files import ensure_dir
from hermes.errors import HermesError

DEFAULT_INDEX = "https://pypi.org/simple"
MAX_FILE_BYTES = 700_000_000
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_TIMEOUT_S = 60.0
_SUFFIXES = (".whl", ".tar.gz", ".zip")
_PRE_RELEASE = re.compile(r"(a|b|rc|dev|alpha|beta|pre)\.?\d*", re.I)


class RegistryError(HermesError):
    """The registry cannot be reached, or does not have the package. `offline` says which."""

    def __init__(self, message: str, hint: str = "", *, offline: bool = False) -> None:
        super().__init__(message, hint)
        self.offline = offline


@dataclass(frozen=True, slots=True)
class RegistryFile:
    """One wheel or source distribution."""

    filename: str
    url: str
    sha256: str | None
    yanked: bool = False

    @property
    def version(self) -> str:
        """As the file name has it."""
        if self.filename.endswith(".whl"):
            return self.filename.split("-")[1]
        stem = self.filename.removesuffix(".tar.gz").removesuffix(".zip")
        return stem.rpartition("-")[2]

    @property
    def preference(self) -> tuple[int, int]:
        """Smallest first: a pure wheel, a source distribution, a wheel of this system, another wheel."""
        if self.filename.endswith("none-any.whl"):
            return 0, 0
        if not self.filename.endswith(".whl"):
            return 1, 0
        interpreter = f"cp{sys.version_info.major}{sys.version_info.minor}"
        fits = interpreter in self.filename or "abi3" in self.filename
        return 2, 0 if fits and "manylinux" in self.filename else 1


def index_url(environ: Mapping[str, str] = os.environ) -> str:
    """pip's index: PIP_INDEX_URL, pip's configuration, or the public one."""
    if url := environ.get("PIP_INDEX_URL"):
        return url
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or DEFAULT_INDEX


def list_files(name: str, index: str) -> list[RegistryFile]:
    """Every file of the package that this module can read; raises `RegistryError`."""
    url = f"{index.rstrip('/')}/{_normal(name)}/"
    body, content_type = _get(url, name)
    text = body.decode("utf-8", "replace")
    files = _from_json(text, url) if "json" in content_type else _from_html(text, url)
    return [file for file in files if file.filename.endswith(_SUFFIXES)]


def newest_version(files: list[RegistryFile]) -> str | None:
    """The highest final release among `files`; a pre-release only where there is nothing else."""
    versions = {file.version for file in files if not file.yanked}
    final = {version for version in versions if not _PRE_RELEASE.search(version)}
    return max(final or versions, key=version_key, default=None)


def version_key(version: str) -> tuple[int, ...]:
    """The numbers of a version in order; local parts do not count."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))


def same_version(first: str, second: str) -> bool:
    """1.0 and 1.0.0 are the same release."""
    longest = max(len(version_key(first)), len(version_key(second)))
    keys = [
        version_key(version) + (0,) * (longest - len(version_key(version))) for version in (first, second)
    ]
    suffixes = [_PRE_RELEASE.findall(version) for version in (first, second)]
    return keys[0] == keys[1] and suffixes[0] == suffixes[1]


def download(name: str, version: str, cache: Path, index: str) -> Path:
    """The archive of the release in the cache folder; fetched once."""
    folder = cache / f"{_normal(name)}-{version}"
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        if path.name.endswith(_SUFFIXES):
            return path
    files = [file for file in list_files(name, index) if same_version(file.version, version)]
    if not files:
        newest = newest_version(list_files(name, index))
        raise RegistryError(
            f"the registry has no {name} {version}", f"Its newest version is {newest}. Pin one that exists."
        )
    file = min(files, key=lambda candidate: (candidate.preference, candidate.filename))
    body, _ = _get(file.url, name)
    if file.sha256 and hashlib.sha256(body).hexdigest() != file.sha256:
        raise RegistryError(f"{file.filename} does not have the hash that the registry states")
    target = ensure_dir(folder) / file.filename
    partial = folder / f"{file.filename}.{new_id()}.part"
    partial.write_bytes(body)
    partial.rename(target)
    return target


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _get(url: str, name: str) -> tuple[bytes, str]:
    import httpx2

    try:
        with httpx2.stream(
            "GET", url, headers={"accept": _ACCEPT}, timeout=_TIMEOUT_S, follow_redirects=True
        ) as response:
            if response.status_code == 404:
                raise RegistryError(f"the registry has no package '{name}'", "Check its name.")
            response.raise_for_status()
            return _read_body(response.iter_bytes(), name), response.headers.get("content-type", "")
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        host = urlsplit(url).hostname or "the registry"
        raise RegistryError(
            f"{host} cannot be reached ({type(error).__name__})",
            "Check the network; what is in the cache is still used.",
            offline=True,
        ) from error


def _read_body(chunks: Iterable[bytes], name: str) -> bytes:
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > MAX_FILE_BYTES:
            raise RegistryError(f"a file of {name} is larger than {MAX_FILE_BYTES} bytes")
    return bytes(body)


def _from_json(text: str, base: str) -> list[RegistryFile]:
    try:
        return [
            RegistryFile(
                entry["filename"],
                urljoin(base, entry["url"]),
                entry.get("hashes", {}).get("sha256"),
                bool(entry.get("yanked")),
            )
            for entry in json.loads(text)["files"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RegistryError(
            "the registry's answer is not a list of files", "Check pip's index-url."
        ) from error


def _from_html(text: str, base: str) -> list[RegistryFile]:
    parser = _Links()
    parser.feed(text)
    files = []
    for href, yanked in parser.links:
        url, fragment = urldefrag(urljoin(base, href))
        filename = unquote(urlsplit(url).path.rpartition("/")[2])
        digest = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
        files.append(RegistryFile(filename, url, digest, yanked))
    return files


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and (href := values.get("href")):
            self.links.append((href, "data-yanked" in values))
