"""Checkpoints to take away: addresses that need no header, for their files one by one or all in a tar."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import format_datetime

from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from hermes.engine.checkpoints.store import KINDS, Checkpoint, CheckpointPath, CheckpointStore
from hermes.engine.lora.adapter_tar import Tar
from hermes.engine.server.responses import RequestError, as_json
from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker.external import VALID_S
from hermes.engine.types import EngineUserError

_ARCHIVE = "checkpoint.tar"
_COMPLETE = "checkpoint_complete"
"""An empty file by which older SDKs know that an archive is whole."""


class Downloads:
    def __init__(self, state: EngineServerState) -> None:
        self._state = state
        self._store = state.store

    async def external_urls(self, request: Request) -> Response:
        path = path_of(self._store, request)
        expires_s = int(time.time()) + VALID_S
        files = found(self._store, path).files
        urls = {name: self._address(request, path, name, expires_s) for name in files}
        return as_json({"urls": urls, "expires": datetime.fromtimestamp(expires_s, UTC).isoformat()})

    async def archive(self, request: Request) -> Response:
        """What SDKs before 0.36 ask for: the way to a tar of all files."""
        path = path_of(self._store, request)
        expires_s = int(time.time()) + VALID_S
        until = format_datetime(datetime.fromtimestamp(expires_s, UTC), usegmt=True)
        where = self._address(request, path, _ARCHIVE, expires_s)
        return Response(status_code=302, headers={"Location": where, "Expires": until})

    async def file(self, request: Request) -> Response:
        """One file of a checkpoint, or all, to whoever has the signed address."""
        path, name = path_of(self._store, request), request.path_params["file"]
        query = request.query_params
        expires, token = query.get("expires", ""), query.get("token", "")
        if not self._state.signer.is_valid(f"{path}/{name}", expires, token, time.time()):
            raise RequestError(403, "this address is not valid (any more): ask for the URLs again")
        folder, files = self._store.folder(path), found(self._store, path).files
        if name == _ARCHIVE:
            tar = Tar({**{one: folder / one for one in files}, _COMPLETE: None})
            headers = {"Content-Length": str(tar.size_bytes)}
            return StreamingResponse(iter(tar), headers=headers, media_type="application/x-tar")
        if name not in files:
            raise RequestError(404, f"{path} has no file {name}")
        return FileResponse(folder / name)

    def _address(self, request: Request, path: CheckpointPath, name: str, expires_s: int) -> str:
        base = str(request.base_url).rstrip("/")
        token = self._state.signer.sign(f"{path}/{name}", expires_s)
        where = f"{base}/api/v1/files/{path.run_id}/{path.kind}/{path.name}/{name}"
        return f"{where}?expires={expires_s}&token={token}"


def path_of(store: CheckpointStore, request: Request) -> CheckpointPath:
    """The checkpoint that an address names. Refused: there is none."""
    named = request.path_params
    path = CheckpointPath(named["run"], named["kind"], named["name"])
    if path.kind not in KINDS:
        raise RequestError(404, f"'{path.kind}' is none of {', '.join(KINDS)}")
    found(store, path)
    return path


def found(store: CheckpointStore, path: CheckpointPath) -> Checkpoint:
    """Refused: there is none."""
    try:
        return store.find(path)
    except EngineUserError as error:
        raise RequestError(404, error.message) from error
