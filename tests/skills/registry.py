"""A Python registry on loopback, and wheels written for one test."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def wheel(files: Mapping[str, str], scripts: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a wheel with these files and console scripts."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        lines = ["[console_scripts]", *(f"{name} = {target}" for name, target in (scripts or {}).items())]
        archive.writestr("kiln-1.0.dist-info/entry_points.txt", "\n".join(lines))
        archive.writestr("kiln-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: kiln\nVersion: 1.0\n")
        archive.writestr("kiln-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("kiln-1.0.dist-info/RECORD", "")
    return buffer.getvalue()


@dataclass
class Registry:
    """The files that are served, and what was requested."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    """File name → content."""
    as_json: bool = True
    wrong_hash: bool = False
    requests: list[str] = field(default_factory=list)

    def page(self, package: str) -> tuple[str, bytes] | None:
        names = [name for name in self.files if name.lower().replace("_", "-").startswith(f"{package}-")]
        if not names:
            return None
        digests = {name: hashlib.sha256(self.files[name]).hexdigest() for name in names}
        if self.wrong_hash:
            digests = dict.fromkeys(names, "0" * 64)
        if self.as_json:
            entries = [
                {"filename": name, "url": f"/files/{name}", "hashes": {"sha256": digests[name]}}
                for name in names
            ]
            return "application/vnd.pypi.simple.v1+json", json.dumps({"files": entries}).encode()
        links = [f'<a href="../../files/{name}#sha256={digests[name]}">{name}</a>' for name in names]
        return "text/html", "\n".join(links).encode()


@contextmanager
def serve_registry() -> Iterator[Registry]:
    registry = Registry("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.requests.append(self.path)
            kind, _, name = self.path.strip("/").partition("/")
            page = registry.page(name) if kind == "simple" else ("application/zip", registry.files[name])
            self.send_response(200 if page else 404)
            content_type, body = page or ("text/plain", b"")
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
