"""One run of one environment file on one side, as a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from compare import Outcome
from files import EnvironmentFile
from forks import ForkedRun, ForkServer
from servers import LocalServices

from data import local_files

_DRIVER = Path(__file__).with_name("driver.py")


@dataclass(frozen=True)
class Side:
    name: str
    """original or hermes."""
    python: Path
    folder: Path
    tokenizer: Path
    limit_s: float
    packages_of: Path | None = None
    """The Python whose packages are used after one's own."""

    @cached_property
    def forks(self) -> ForkServer:
        command = [str(self.python), str(_DRIVER), self.name, str(self.tokenizer)]
        return ForkServer(command, _variables(self, self.folder))

    def encoder(self) -> tuple[Callable[[str], list[int]], int]:
        """The ids of a text, and the id that ends an answer."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.tokenizer / "tokenizer.json"))
        settings = json.loads((self.tokenizer / "tokenizer_config.json").read_text(encoding="utf-8"))
        end = settings["eos_token"]
        text = end if isinstance(end, str) else end["content"]
        return lambda words: tokenizer.encode(words, add_special_tokens=False).ids, tokenizer.token_to_id(
            text
        )


def run_side(
    side: Side,
    checkout: Path,
    file: EnvironmentFile,
    mode: str,
    services: LocalServices,
    groups: int,
    group_size: int,
) -> Outcome:
    place = side.folder / "runs" / f"{file.name.replace('/', '.')}.{mode}.{side.name}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    prepare_folder(place, checkout)
    output, evals = place / "groups.jsonl", place / "evals"
    flags = [
        f"--env.tokenizer_name={side.tokenizer}",
        f"--env.group_size={group_size}",
        "--env.total_steps=" + str(groups),
        "--env.use_wandb=false",
        "--env.max_num_workers=1",
        "--env.ensure_scores_are_not_same=false",
        "--env.include_messages=true",
        f"--env.data_dir_to_save_evals={evals}",
        f"--env.rollout_server_url={services.root}",
        *_server_flags(side, file, services, place / "servers.yaml"),
        "--slurm=false",
        *(flag.replace("ROOT", services.root) for flag in file.flags),
    ]
    if mode == "process":
        flags.append(f"--env.data_path_to_save_groups={output}")
    path = checkout / "environments" / file.name
    arguments = [mode, str(path), str(side.folder / "data.json"), str(side.tokenizer), *flags]
    # For clients that a file makes itself.
    variables = {**_variables(side, place), "OPENAI_BASE_URL": f"{services.root}/v1"}
    run = side.forks.start(arguments, place, variables, place / "log.txt")
    timed_out = _wait(run, mode, services, side.limit_s)
    rows = services.groups if mode == "serve" else _lines(output)
    failure = "took too long" if timed_out else _failure(place / "log.txt", run.returncode)
    return Outcome(
        rows[:groups] if mode == "serve" else rows, _metrics(evals), services.requests, failure, mode
    )


def _server_flags(side: Side, file: EnvironmentFile, services: LocalServices, config: Path) -> list[str]:
    """Flags that set the model's server; where the file has several, a file of settings with two."""
    server = {
        "base_url": f"{services.root}/v1",
        "api_key": "x",
        "model_name": "scripted",
        "server_type": file.server_type,
        "tokenizer_name": str(side.tokenizer),
    }
    if not file.several_servers:
        return [f"--openai.{name}={value}" for name, value in server.items()]
    config.write_text(json.dumps({"openai": [server, server]}), encoding="utf-8")
    return [f"--config={config}"]


def copy_checkout(checkout: Path, folder: Path) -> Path:
    """A copy of the environments with the files that the repository lacks: the checkout stays as it is."""
    copy = folder / "checkout"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(checkout / "environments", copy / "environments")
    for name, content in local_files().items():
        if name.startswith("environments/"):
            _write(copy / name, content)
    return copy


def prepare_folder(place: Path, checkout: Path) -> None:
    """Files name data of their own from the root of the checkout, or below the user's home."""
    (place / "environments").symlink_to(checkout / "environments")
    for name, content in local_files().items():
        if not name.startswith("environments/"):
            _write(place / name, content)


def _write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")


def _wait(run: ForkedRun, mode: str, services: LocalServices, limit_s: float) -> bool:
    """Whether it had to be ended; a serving one has twenty seconds after all groups have arrived."""
    if mode != "serve":
        return not run.wait(limit_s)
    waited_s = 0.0
    while run.running and not services.done.wait(0.2) and waited_s < limit_s:
        waited_s += 0.2
    ended = run.wait(20 if services.done.is_set() else 0.1)
    return not ended and not services.done.is_set()


def _variables(side: Side, place: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    more = {
        "HOME": str(place),
        "HERMES_HOME": str(place / "hermes"),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "TOKENIZERS_PARALLELISM": "false",
        "OPENAI_API_KEY": "x",
        "ANTHROPIC_API_KEY": "x",
        "NOUS_API_KEY": "x",
        "NLTK_DATA": str(place / "nltk_data"),
    }
    if side.packages_of is not None:
        library = side.packages_of.parent.parent / "lib"
        more["HERMES_COMPARE_PACKAGES"] = str(next(library.glob("python3*/site-packages")))
    return kept | more


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _metrics(folder: Path) -> dict[str, Any]:
    files = sorted(folder.rglob("metrics.json")) if folder.is_dir() else []
    if not files:
        return {}
    metrics: dict[str, Any] = json.loads(files[-1].read_text(encoding="utf-8"))
    return metrics.get("results", metrics)  # some files write their own form


def _failure(log: Path, code: int) -> str:
    """The last line of the log that reads as an error; nothing where the process ended well."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"(Error|Exception|error)\b.*:|rejected|no items", line)]
    line = errors[-1] if errors else (lines[-1] if lines and code else "")
    return re.sub(r"\s+", " ", line.replace("|", "/")).strip()[:160] or (
        f"exit status {code}" if code else ""
    )
