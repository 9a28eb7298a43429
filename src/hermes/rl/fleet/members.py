"""The servers of a fleet: which versions of the weights each has loaded, and which one samples a request.

A request is sampled with one version, on the least busy server that has it. A server that does not answer, or
has lost its adapters, is left out until it has loaded the version again; the request goes to another one.
Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import time
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import JSON, JSONObject
from hermes.engine.lora.adapter_tar import ADAPTER_FILES
from hermes.engine.server.client import request_json
from hermes.errors import HermesError, ProviderError, UsageError
from hermes.rl.fleet.dialect import PROBE_TEMPERATURES, FleetDialect, LogprobScale, WeightsName
from hermes.serving.fetch import fetch_file

if TYPE_CHECKING:
    import httpx2

KEY_VARIABLE = "HERMES_FLEET_KEY"
"""The API key of the servers."""
_MODELS_TIMEOUT_S = 10.0
_LOAD_TIMEOUT_S = 300.0
_SAMPLE_TIMEOUT_S = 3600.0
_RETRY_S = 5.0
"""Between two attempts to load the same version."""
_MAX_REFUSALS = 3
"""In succession: a shared folder may show a new file late, and a rank that is too high stays so."""
_MIN_KEPT = 2
"""Versions that stay on a server: requests of the one before the newest may still run."""
_logger = logging.getLogger(__name__)
_POLICY = "policy"
_SCHEME = "tinker://"
_TIMEOUT_S = 600.0


@dataclass(eq=False)
class FleetMember:
    url: str
    base_model: str
    logprobs: LogprobScale
    versions: list[PolicyVersion] = field(default_factory=list)
    """Oldest first."""
    running: Counter[str] = field(default_factory=Counter)
    """Requests in progress, by the key of their version."""

    refusals: int = 0
    """Attempts to load a version that the server answered with an error, since the last that succeeded."""
    last_refusal: str = ""
    not_before_s: float = 0.0
    """When it may be asked to load a version again that it could not load; monotonic."""

    @property
    def load(self) -> int:
        return self.running.total()

    def weights(self, version: PolicyVersion) -> WeightsName:
        return WeightsName(self.base_model, None if version.folder is None else version.adapter_name)


class SamplingFleet:
    def __init__(self, http: httpx2.AsyncClient, dialect: FleetDialect) -> None:
        """`http`: sends the key of the servers, if they need one."""
        self._http, self._dialect = http, dialect
        self.members: list[FleetMember] = []
        self.current: PolicyVersion | None = None
        """The newest version that a server has; None: none yet."""

    async def join(self, urls: Sequence[str]) -> None:
        """UsageError: a server does not answer, cannot load adapters, or returns no logprobs."""
        for address in urls:
            url = address.rstrip("/").removesuffix("/v1")
            models = await self._get_models(url)
            probe = await self._http.post(f"{url}{self._dialect.load_path}", json={})
            if probe.status_code in (404, 405) or not models:
                raise UsageError(f"the server at {url} does not load adapters", self._dialect.start_hint)
            self.members.append(FleetMember(url, models[0], await self._logprob_scale(url, models[0])))

    async def publish(self, version: PolicyVersion) -> None:
        """Loads the version on every server that lacks it; it is current as soon as one has it.

        UsageError: all servers have refused it repeatedly.
        """
        now_s = time.monotonic()
        missing = [
            member
            for member in self.members
            if version not in member.versions and member.not_before_s <= now_s
        ]
        await asyncio.gather(*(self._load(member, version) for member in missing))
        if all(member.refusals >= _MAX_REFUSALS for member in self.members):
            raise UsageError(
                f"no server can load {version.key}: {self.members[0].last_refusal}", self._dialect.start_hint
            )
        for member in self.members:
            await self._unload_old(member)

    def in_use(self) -> set[PolicyVersion]:
        return {version for member in self.members for version in member.versions}

    async def sample(self, path: str, body: JSONObject) -> JSON:
        """`path`: one of the dialect's. ProviderError: no server has the weights, or the request is at fault
        (its status says so)."""
        tried: set[str] = set()
        while True:
            version = self.current
            ready = [
                member
                for member in self.members
                if member.url not in tried and version is not None and version in member.versions
            ]
            if version is None or not ready:
                raise ProviderError("no server of the fleet has the weights now", retryable=True, status=503)
            member = min(ready, key=lambda candidate: candidate.load)
            tried.add(member.url)
            answer = await self._sample_at(member, version, path, body)
            if answer is not None:
                return answer

    async def _sample_at(
        self, member: FleetMember, version: PolicyVersion, path: str, body: JSONObject
    ) -> JSON:
        """None: the server has lost the weights or does not answer; another one may."""
        import httpx2

        weights = member.weights(version)
        request = self._dialect.request(path, body, weights)
        self._check_logprobs(member, path, request)
        member.running[version.key] += 1
        try:
            response = await self._http.post(f"{member.url}{path}", json=request, timeout=_SAMPLE_TIMEOUT_S)
        except httpx2.HTTPError as error:
            _logger.warning("%s does not answer: %s", member.url, error or type(error).__name__)
            member.versions.clear()
            return None
        finally:
            member.running[version.key] -= 1
        if response.status_code >= 500 or (
            response.status_code >= 400 and not await self._has(member, weights.model)
        ):
            _logger.warning("%s returned %s: %s", member.url, response.status_code, response.text[:300])
            member.versions.clear()
            return None
        if response.status_code >= 400:
            raise ProviderError(response.text[:2000], status=response.status_code)
        try:
            return self._dialect.answer(path, response.json(), weights, version.key)
        except (ProviderError, ValueError) as error:
            _logger.error("%s: %s; it gets no more requests until it has loaded them", member.url, error)
            member.versions.clear()
            return None

    def _check_logprobs(self, member: FleetMember, path: str, request: JSONObject) -> None:
        """ProviderError: the server's logprobs would not be those of the distribution that it samples."""
        sampling = self._dialect.sampling(path, request)
        missing = None if sampling is None else member.logprobs.missing(sampling)
        if missing is not None:
            raise ProviderError(
                f"the request has {missing}, and the logprobs of {member.url} do not take it into account: "
                f"{self._dialect.logprobs_hint}",
                status=400,
            )

    async def _logprob_scale(self, url: str, base_model: str) -> LogprobScale:
        import httpx2

        path, base = self._dialect.sample_paths[0], WeightsName(base_model, None)
        logprobs: list[float] = []
        try:
            for temperature in PROBE_TEMPERATURES:
                request = self._dialect.request(path, self._dialect.probe(temperature), base)
                response = await self._http.post(f"{url}{path}", json=request, timeout=_LOAD_TIMEOUT_S)
                if response.status_code >= 400:
                    raise ProviderError(f"{response.status_code} {response.text[:300]}")
                logprobs.append(self._dialect.probe_logprob(response.json()))
        except (httpx2.HTTPError, ValueError, HermesError) as error:
            raise UsageError(
                f"the server at {url} does not sample tokens with logprobs: {error}", self._dialect.start_hint
            ) from error
        return LogprobScale.of(*logprobs)

    async def _load(self, member: FleetMember, version: PolicyVersion) -> None:
        import httpx2

        member.not_before_s = time.monotonic() + _RETRY_S
        try:
            models = await self._get_models(member.url)
            if not member.versions:  # it may have been started again, otherwise than before
                member.base_model = models[0]
                member.logprobs = await self._logprob_scale(member.url, models[0])
            if version.folder is not None and version.adapter_name not in models:
                body = {"lora_name": version.adapter_name, "lora_path": str(version.folder)}
                response = await self._http.post(
                    f"{member.url}{self._dialect.load_path}", json=body, timeout=_LOAD_TIMEOUT_S
                )
                if response.status_code >= 400:
                    member.refusals += 1
                    member.last_refusal = response.text[:500]
                    _logger.warning("%s cannot load %s: %s", member.url, version.key, member.last_refusal)
                    return
        except (httpx2.HTTPError, HermesError) as error:
            _logger.warning("%s cannot load %s: %s", member.url, version.key, error)
            return
        member.versions.append(version)
        member.refusals, member.not_before_s = 0, 0.0
        self.current = version

    async def _unload_old(self, member: FleetMember) -> None:
        import httpx2

        for version in member.versions[:-_MIN_KEPT]:
            if member.running[version.key]:
                continue
            member.versions.remove(version)
            if version.folder is None:
                continue
            try:
                body = {"lora_name": version.adapter_name}
                await self._http.post(f"{member.url}{self._dialect.unload_path}", json=body)
            except httpx2.HTTPError as error:
                _logger.warning("%s cannot unload %s: %s", member.url, version.key, error)

    async def _has(self, member: FleetMember, name: str) -> bool:
        """Whether the server still has these weights; SGLang's error for missing ones is a plain 400."""
        try:
            return name in await self._get_models(member.url)
        except UsageError:
            return False

    async def _get_models(self, url: str) -> list[str]:
        """The names that the server answers to, the base model first."""
        import httpx2

        try:
            response = await self._http.get(f"{url}/v1/models", timeout=_MODELS_TIMEOUT_S)
            if response.status_code in (401, 403):
                raise UsageError(
                    f"the server at {url} refuses the key of this fleet ({response.status_code})",
                    f"store the server's API key: hermes config set {KEY_VARIABLE} KEY",
                )
            response.raise_for_status()
            return [str(card["id"]) for card in response.json()["data"]]
        except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"no {self._dialect.name} server answers at {url}: {error or type(error).__name__}",
                self._dialect.start_hint,
            ) from error


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    key: str
    """The engine's name for the weights: path and time."""
    folder: Path | None
    """The folder of the adapter; None: the base model."""

    @property
    def adapter_name(self) -> str:
        return adapter_name(self.key)


def adapter_name(key: str) -> str:
    """Another one for every version, also if a checkpoint is written again under its name."""
    return "hermes-" + re.sub(r"[^A-Za-z0-9_.]+", "-", key.removeprefix(_SCHEME))


class VersionSource:
    def __init__(self, engine_url: str, folder: Path) -> None:
        """`folder`: has one folder a version; the servers read it under the same path."""
        self._engine_url, self._folder = engine_url, folder

    def newest(self, current: PolicyVersion | None) -> PolicyVersion | None:
        """The version that `policy` names now, fetched; `current` if it is still that one.

        None: it cannot be fetched, because it is no checkpoint or was replaced meanwhile. HermesError: the
        engine does not answer.
        """
        versions = self._versions()
        base = next(iter(versions.values()))
        key = versions.get(_POLICY, base)
        if current is not None and current.key == key:
            return current
        if key == base:
            return PolicyVersion(key, None)
        return self._fetch(key) if key.startswith(_SCHEME) else None

    def _versions(self) -> dict[str, str]:
        """The version of the weights that each name of the engine refers to; the base model is the first."""
        cards = request_json(self._engine_url, "v1/models")["data"]
        return {str(card["id"]): str(card["metadata"]["weight_version"]) for card in cards}

    def forget(self, version: PolicyVersion) -> None:
        """Deletes the files of a version that no server needs any more."""
        if version.folder is not None:
            shutil.rmtree(version.folder, ignore_errors=True)

    def _fetch(self, key: str) -> PolicyVersion | None:
        path = key.partition("@")[0]
        run, kind, name = path.removeprefix(_SCHEME).split("/", 2)
        target = self._folder / adapter_name(key)
        if not target.is_dir():
            checkpoint = f"api/v1/training_runs/{run}/checkpoints/{kind}/{urllib.parse.quote(name)}"
            urls = request_json(self._engine_url, f"{checkpoint}/external_weights_urls")["urls"]
            draft = target.with_name(f"{target.name}.draft")
            draft.mkdir(parents=True, exist_ok=True)
            for file in ADAPTER_FILES:
                _download(urls[file], draft / file)
            if self._versions().get(path) != key:
                shutil.rmtree(draft)
                return None
            draft.rename(target)
        return PolicyVersion(key, target)


def _download(url: str, target: Path) -> None:
    try:
        fetch_file(url, target, _TIMEOUT_S)
    except OSError as error:
        raise HermesError(f"the adapter cannot be fetched from the engine: {error}") from error
