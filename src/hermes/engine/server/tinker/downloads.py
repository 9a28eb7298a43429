"""Downloads of checkpoints: signed URLs that need no header, of single files or of a tar with all of them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import format_datetime

from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from hermes.engine.checkpoints.store import KINDS, Checkpoint, CheckpointPath, CheckpointStore
from hermes.engine.lora.adapter_tar import Tar
from hermes.engine.server.app import SIGNED_FILES
from hermes.engine.server.responses import RequestError, as_json
from hermes.engine.server.security import URL_VALID_S
from hermes.engine.server.state import EngineServerState
from hermes.engine.types import EngineUserError
from hermes.serving.openapi import operation

_CHECKPOINT = "/api/v1/training_runs/{run}/checkpoints/{kind}/{name}"
_TEXT = {"type": "string"}
_SIGNATURE = (("expires", _TEXT, "seconds since 1970"), ("token", _TEXT, "signature of path and time"))

_ARCHIVE_FILE = "checkpoint.tar"
_COMPLETE_FILE = "checkpoint_complete"
"""An empty file that older SDKs require as the mark of a complete archive."""


class DownloadRoutes:
    def __init__(self, state: EngineServerState) -> None:
        self._state = state
        self._store = state.store

    @operation("GET", f"{_CHECKPOINT}/external_weights_urls", statuses=(404,))
    async def external_urls(self, request: Request) -> Response:
        """Signed addresses of its files."""
        checkpoint = requested_checkpoint(self._store, request)
        expires_s = int(time.time()) + URL_VALID_S
        urls = {
            name: self._signed_url(request, checkpoint.path, name, expires_s) for name in checkpoint.files
        }
        return as_json({"urls": urls, "expires": datetime.fromtimestamp(expires_s, UTC).isoformat()})

    @operation("GET", f"{_CHECKPOINT}/archive", statuses=(302, 404))
    async def archive(self, request: Request) -> Response:
        """The signed address of a tar of its files, for SDKs before 0.36."""
        path = requested_checkpoint(self._store, request).path
        expires_s = int(time.time()) + URL_VALID_S
        expires = format_datetime(datetime.fromtimestamp(expires_s, UTC), usegmt=True)
        url = self._signed_url(request, path, _ARCHIVE_FILE, expires_s)
        return Response(status_code=302, headers={"Location": url, "Expires": expires})

    @operation(
        "GET",
        "/api/v1/files/{run}/{kind}/{name}/{file}",
        query=_SIGNATURE,
        statuses=(404,),
        content_type="application/octet-stream",
    )
    async def file(self, request: Request) -> Response:
        """A file of a checkpoint, or all of them; the signature in the URL is the authorization."""
        checkpoint, name = requested_checkpoint(self._store, request), request.path_params["file"]
        path, files = checkpoint.path, checkpoint.files
        query = request.query_params
        expires, token = query.get("expires", ""), query.get("token", "")
        if not self._state.signer.is_valid(f"{path}/{name}", expires, token, time.time()):
            raise RequestError(403, "the URL is not valid or has expired: request the URLs again")
        folder = self._store.folder(path)
        if name == _ARCHIVE_FILE:
            tar = Tar({**{file: folder / file for file in files}, _COMPLETE_FILE: None})
            headers = {"Content-Length": str(tar.size_bytes)}
            return StreamingResponse(iter(tar), headers=headers, media_type="application/x-tar")
        if name not in files:
            raise RequestError(404, f"{path} has no file {name}")
        return FileResponse(folder / name)

    def _signed_url(self, request: Request, path: CheckpointPath, name: str, expires_s: int) -> str:
        base = str(request.base_url).rstrip("/")
        token = self._state.signer.sign(f"{path}/{name}", expires_s)
        url = f"{base}{SIGNED_FILES}{path.run_id}/{path.kind}/{path.name}/{name}"
        return f"{url}?expires={expires_s}&token={token}"


def requested_checkpoint(store: CheckpointStore, request: Request) -> Checkpoint:
    """The checkpoint that a URL names. RequestError: it does not exist."""
    params = request.path_params
    path = CheckpointPath(params["run"], params["kind"], params["name"])
    if path.kind not in KINDS:
        raise RequestError(404, f"'{path.kind}' is not one of {', '.join(KINDS)}")
    return find_checkpoint(store, path)


def find_checkpoint(store: CheckpointStore, path: CheckpointPath) -> Checkpoint:
    """RequestError: it does not exist."""
    try:
        return store.find(path)
    except EngineUserError as error:
        raise RequestError(404, error.message) from error
