"""Checks of what is around Hermes: sandboxes, GPU, optional packages, endpoints; none waits for long."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from hermes.config.doctor.check import Check, CheckStatus, Subject
from hermes.config.providers import profiles
from hermes.config.secrets import hide
from hermes.config.settings import LOCAL, ProviderSettings

_PROGRAM_TIMEOUT_S = 10.0
_ENDPOINT_TIMEOUT_S = 2.0
_LARGEST_LISTING_BYTES = 4 << 20
_START_COMMANDS = {
    "vllm": "vllm serve MODEL",
    "sglang": "python -m sglang.launch_server --model-path MODEL",
    "ollama": "ollama serve",
    "llamacpp": "llama-server -m FILE.gguf --jinja",
}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class _Ran:
    """A program's outcome: `path` is None if there is no such program."""

    path: str | None
    ok: bool = False
    output: str = ""
    """The text that it printed, or the last line of its complaint."""


def bubblewrap(subject: Subject) -> list[Check]:
    gives = "isolated commands without root; the default of runs nobody watches"
    isolate = "--unshare-all --die-with-parent --ro-bind / / --proc /proc --dev /dev"
    ran = _run(subject, "bwrap", *isolate.split(), "true")
    if ran.path is None:
        problem = "bwrap is not installed"
        return [Check("bubblewrap", CheckStatus.MISSING, problem, gives, "apt install bubblewrap")]
    if not ran.ok:
        problem = f"{ran.path} cannot make a sandbox: {ran.output}"
        fix = "sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"
        return [Check("bubblewrap", CheckStatus.MISSING, problem, gives, fix)]
    return [Check("bubblewrap", CheckStatus.OK, f"{ran.path} runs commands in a sandbox")]


def docker(subject: Subject) -> list[Check]:
    gives = "isolated commands in a container image of your choice"
    ran = _run(subject, "docker", "version", "--format", "{{.Server.Version}}")
    if ran.path is None:
        return [
            Check("docker", CheckStatus.MISSING, "docker is not installed", gives, "apt install docker.io")
        ]
    if not ran.ok:
        problem = f"{ran.path} reaches no engine: {ran.output}"
        return [Check("docker", CheckStatus.MISSING, problem, gives, "systemctl start docker")]
    return [Check("docker", CheckStatus.OK, f"engine {ran.output}")]


def gpu(subject: Subject) -> list[Check]:
    gives = "faster local models and training; everything also runs on the CPU"
    ran = _run(subject, "nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    if ran.path is None or not ran.ok:
        problem = "no nvidia-smi" if ran.path is None else f"{ran.path} failed: {ran.output}"
        return [
            Check("gpu", CheckStatus.MISSING, problem, gives, "install the NVIDIA driver, if there is a GPU")
        ]
    devices = "; ".join(line.strip() for line in ran.output.splitlines() if line.strip())
    try:
        torch = version("torch")
    except PackageNotFoundError:
        fix = "pip install 'hermes-research[train]'"
        return [Check("gpu", CheckStatus.WARN, f"{devices}; no torch", gives, fix)]
    if torch.endswith("+cpu"):
        problem = f"{devices}; torch {torch} cannot use it"
        return [Check("gpu", CheckStatus.WARN, problem, gives, "pip install torch")]
    return [Check("gpu", CheckStatus.OK, f"{devices}; torch {torch}")]


def optional_packages(subject: Subject) -> list[Check]:
    return [
        _package("torch", "train", "the bundled model and local training"),
        _package("transformers", "train", "the bundled model, chat templates and tokenizers"),
        _browser(subject),
        _package("mcp", "mcp", "tools of MCP servers"),
        _package("pyarrow", "export", "Parquet export"),
        _package("wandb", "wandb", "metrics at Weights & Biases, where WANDB_API_KEY is set"),
    ]


def _package(name: str, extra: str, gives: str) -> Check:
    if find_spec(name) is None:
        fix = f"pip install 'hermes-research[{extra}]'"
        return Check(name, CheckStatus.MISSING, "not installed", gives, fix)
    try:
        return Check(name, CheckStatus.OK, version(name))
    except PackageNotFoundError:
        return Check(name, CheckStatus.OK, "installed, version unknown")


def _browser(subject: Subject) -> Check:
    gives = "the browser tools"
    package = _package("playwright", "browser", gives)
    if package.status is not CheckStatus.OK:
        return Check("browser", package.status, "playwright is not installed", gives, package.fix)
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((path for name in names if (path := _program(subject, name))), None)
    downloads = Path(subject.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache/ms-playwright")
    program = program or next((str(path) for path in sorted(downloads.glob("chromium*"))), None)
    if program is None:
        problem = f"playwright {package.what}, but no chromium"
        return Check("browser", CheckStatus.MISSING, problem, gives, "playwright install chromium")
    return Check("browser", CheckStatus.OK, f"playwright {package.what}, {program}")


def endpoints(subject: Subject) -> list[Check]:
    """The usual local servers, and every provider the user configured."""
    servers = {
        name: profile
        for name, profile in profiles(subject.settings, subject.environ).items()
        if profile.base_url != LOCAL and (name in subject.settings.providers or name in _START_COMMANDS)
    }
    with ThreadPoolExecutor(max(1, len(servers))) as pool:
        return list(pool.map(lambda item: _endpoint(subject, *item), servers.items()))


class _NotAListError(ValueError):
    """The endpoint answers, but not with a list of models."""


def _endpoint(subject: Subject, name: str, profile: ProviderSettings) -> Check:
    key = subject.environ.get(profile.key_env) if profile.key_env else None
    label, gives = f"endpoint {name}", f"models named {name}/NAME"
    url = str(hide("base_url", profile.base_url, ()))
    try:
        return Check(label, CheckStatus.OK, f"{url}, {_list_models(profile.base_url, key)}")
    except urllib.error.HTTPError as error:
        variable = profile.key_env or f"providers.{name}.key_env VARIABLE"
        fix = f"hermes config set {variable}" if error.code in (401, 403) else ""
        return Check(label, CheckStatus.WARN, f"{url} answers HTTP {error.code}", gives, fix)
    except (OSError, ValueError, http.client.HTTPException) as error:
        status = CheckStatus.WARN if name in subject.settings.providers else CheckStatus.MISSING
        fix = _START_COMMANDS.get(name, f"hermes config set providers.{name}.base_url URL")
        return Check(label, status, f"{url}: {_reason(error)}", gives, fix)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError | _NotAListError):
        return str(getattr(error, "reason", None) or error)
    # Other texts can quote the request: its header with the key, its address with a password.
    return f"could not be asked ({type(error).__name__})"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another server."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def _list_models(base_url: str, key: str | None) -> str:
    """How many models the endpoint lists."""
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if urlsplit(base_url).hostname in _LOOPBACK:
        handlers.append(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"{base_url}/models", headers={"Accept": "application/json"})
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    opener = urllib.request.build_opener(*handlers)
    deadline = time.monotonic() + _ENDPOINT_TIMEOUT_S
    body = b""
    with opener.open(request, timeout=_ENDPOINT_TIMEOUT_S) as response:
        while piece := response.read1(_LARGEST_LISTING_BYTES):
            body += piece
            if time.monotonic() > deadline or len(body) > _LARGEST_LISTING_BYTES:
                raise TimeoutError("the list of models does not end")
    try:
        models = json.loads(body)["data"]
    except (ValueError, KeyError, TypeError):
        models = None
    if not isinstance(models, list):
        raise _NotAListError("answers, but not like an OpenAI-compatible server")
    return "1 model" if len(models) == 1 else f"{len(models)} models"


def _run(subject: Subject, program: str, *arguments: str) -> _Ran:
    path = _program(subject, program)
    if path is None:
        return _Ran(None)
    try:
        done = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROGRAM_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return _Ran(path, output=f"no answer in {_PROGRAM_TIMEOUT_S:.0f} s")
    except OSError as error:
        return _Ran(path, output=str(error))
    if done.returncode != 0:
        complaint = (done.stderr or done.stdout).strip().splitlines()
        return _Ran(path, output=complaint[-1] if complaint else f"exit code {done.returncode}")
    return _Ran(path, ok=True, output=done.stdout.strip())


def _program(subject: Subject, name: str) -> str | None:
    return shutil.which(name, path=subject.environ.get("PATH", os.defpath))
