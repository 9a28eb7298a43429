"""Runs one environment file in one interpreter, with the randomness and the data of the comparison.

    python driver.py original|hermes TOKENIZER

It reads runs from standard input, a line of JSON each, and forks a process for each: MODE FILE DATA.json
TOKENIZER and the flags of the environment. It prints the process and, when that has ended, its status.

Both sides run this file, each in its own Python. It imports Hermes on its own side only, and nothing of the
comparison. These are replaced, so that two runs can be equal and need no network:

- unseeded randomness starts from the calling function (`random`) or from the calling file and a counter
  (`random.Random()`, `os.urandom`, `uuid4`, numpy's generators), so that draws elsewhere, or a default of the
  settings that one side builds more often, do not change it;
- `asyncio.as_completed`, and so tqdm's `gather`, starts coroutines in their order: Python starts them in the
  order of a set, which their addresses in memory give, and so the draws above come in any order;
- `datasets.load_dataset` gives the rows of DATA.json;
- `AutoTokenizer.from_pretrained`, single files of the hub and NLTK's downloads give what is on this machine.

The parser of `math_verify`, which has a time limit, is used once before the runs: that takes seconds.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib
import json
import os
import random
import re
import runpy
import sys
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

_calls: Counter[str] = Counter()
_DRAWS = (
    "random",
    "randint",
    "randrange",
    "choice",
    "choices",
    "sample",
    "shuffle",
    "uniform",
    "gauss",
    "seed",
)


def main() -> None:
    side, tokenizer = sys.argv[1:]
    if packages := os.environ.get("HERMES_COMPARE_PACKAGES"):
        sys.path.append(packages)
    if side == "hermes":
        from hermes.compat import atropos

        atropos.install()
        importlib.import_module("hermes.envs.cli.run")
    for name in ("atroposlib.envs.base", "datasets", "openai", "math_verify", "wandb"):
        importlib.import_module(name)
    importlib.import_module("transformers").AutoTokenizer.from_pretrained(tokenizer)
    importlib.import_module("math_verify").parse("$\\boxed{42}$", parsing_timeout=60)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            _run_child(side, request)
        _answer(pid)
        _, status = os.waitpid(pid, 0)
        _answer(os.waitstatus_to_exitcode(status))


def _answer(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _run_child(side: str, request: dict[str, Any]) -> NoReturn:
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(descriptor, target)
    status = 1
    try:
        run(side, *request["arguments"])
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - it is the run's result
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(side: str, mode: str, file: str, data: str, tokenizer: str, *flags: str) -> None:
    _fix_randomness()
    _fix_order()
    _replace_datasets(json.loads(Path(data).read_text(encoding="utf-8")))
    _replace_tokenizer(tokenizer)
    _replace_downloads()
    sys.argv = [file, mode, *flags]
    if side == "hermes":
        _run_with_hermes(file, mode, list(flags))
        return
    sys.path[0] = str(Path(file).parent)
    # Last, so that the installed library is used and not the checkout's: some files import `environments`.
    sys.path += [str(parent) for parent in Path(file).parents if (parent / "environments").is_dir()]
    if re.search(r"^from \.", Path(file).read_text(encoding="utf-8"), re.MULTILINE):  # as `python -m` does
        parts = Path(file).with_suffix("").parts
        module = ".".join(parts[len(parts) - parts[::-1].index("environments") - 1 :])
        runpy.run_module(module, run_name="__main__", alter_sys=False)
        return
    runpy.run_path(file, run_name="__main__")


def _run_with_hermes(file: str, mode: str, flags: list[str]) -> None:
    from hermes.envs.cli.run import run_file
    from hermes.errors import HermesError

    try:
        run_file(file, mode, flags)
    except HermesError as error:
        sys.exit(f"{error.message} {error.hint}")


def _seed_of_caller() -> int:
    """The name of the file that called, and how often it did."""
    frame = sys._getframe(2)
    name = Path(frame.f_code.co_filename).name
    _calls[name] += 1
    return int.from_bytes(hashlib.sha256(f"{name} {_calls[name]}".encode()).digest()[:4], "big")


def _fix_randomness() -> None:
    class SeededRandom(random.Random):
        def __init__(self, x: Any = None) -> None:
            super().__init__(_seed_of_caller() if x is None else x)

    streams: dict[str, random.Random] = {}

    def drawing(name: str) -> Any:
        def draw(*arguments: Any, **options: Any) -> Any:
            code = sys._getframe(1).f_code
            caller = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
            if caller not in streams:
                streams[caller] = random.Random(caller)
            return getattr(streams[caller], name)(*arguments, **options)

        return draw

    random.Random = SeededRandom  # type: ignore[misc]
    for name in _DRAWS:
        setattr(random, name, drawing(name))
    system_bytes = os.urandom

    def urandom(size: int) -> bytes:
        if "environments" not in sys._getframe(1).f_code.co_filename:
            return system_bytes(size)
        return random.Random(_seed_of_caller()).randbytes(size)

    os.urandom = urandom
    make_uuid = uuid.uuid4

    def uuid4() -> uuid.UUID:
        if "environments" not in sys._getframe(1).f_code.co_filename:
            return make_uuid()
        return uuid.UUID(bytes=random.Random(_seed_of_caller()).randbytes(16), version=4)

    uuid.uuid4 = uuid4
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(7)
    make = numpy.random.default_rng
    numpy.random.default_rng = lambda seed=None: make(_seed_of_caller() if seed is None else seed)


def _fix_order() -> None:
    as_completed = asyncio.as_completed

    def in_order(awaitables: Iterable[Any], **options: Any) -> Any:
        return as_completed([asyncio.ensure_future(awaitable) for awaitable in awaitables], **options)

    asyncio.as_completed = in_order  # type: ignore[assignment]


def _replace_datasets(tables: dict[str, Any]) -> None:
    """A data set that is not in DATA.json gives the rows under `*`, which have the usual columns."""
    try:
        import datasets
    except ImportError:
        return

    def load_dataset(path: str, name: Any = None, *rest: Any, split: Any = None, **options: Any) -> Any:
        rows = tables.get(path) or tables["*"]
        if isinstance(name, str):  # equal questions would get their answers in the order of arrival
            rows = json.loads(json.dumps(rows).replace("version ", f"version {name} "))
        table = _table(rows)
        if split is None:
            splits = dict.fromkeys(("train", "test", "validation"), table)
            named = {
                key.partition("#")[2]: rows for key, rows in tables.items() if key.startswith(f"{path}#")
            }
            return datasets.DatasetDict(splits | {key: _table(rows) for key, rows in named.items()})
        return table.to_iterable_dataset() if options.get("streaming") else table

    def names(path: str, *rest: Any, **options: Any) -> list[str]:
        return ["default"]

    datasets.load_dataset = load_dataset
    datasets.get_dataset_config_names = names


def _table(rows: list[dict[str, Any]]) -> Any:
    """A data set of the rows; the column `image` holds pictures in base64."""
    import datasets

    if "image" not in rows[0]:
        return datasets.Dataset.from_list(rows)
    pictures = [{**row, "image": {"bytes": base64.b64decode(row["image"]), "path": None}} for row in rows]
    return datasets.Dataset.from_list(pictures).cast_column("image", datasets.Image())


def _replace_downloads() -> None:
    """Files of the hub lie in the folder `hub` of the run, NLTK's data in the one that NLTK_DATA names."""
    import huggingface_hub

    def list_repo_tree(*names: Any, **options: Any) -> list[Any]:
        files = sorted(path for path in Path("hub").rglob("*") if path.is_file())
        sizes = {path.relative_to("hub").as_posix(): path.stat().st_size for path in files}
        return [SimpleNamespace(path=path, size=size) for path, size in sizes.items()]

    huggingface_hub.list_repo_tree = list_repo_tree
    huggingface_hub.hf_hub_download = lambda repo, path, **options: str(Path("hub", path))
    try:
        import nltk
    except ImportError:
        return
    nltk.download = lambda *names, **options: True


def _replace_tokenizer(folder: str) -> None:
    import transformers

    load = transformers.AutoTokenizer.from_pretrained

    def from_pretrained(name: Any, *rest: Any, **options: Any) -> Any:
        return load(folder)

    transformers.AutoTokenizer.from_pretrained = from_pretrained


if __name__ == "__main__":
    os.environ.setdefault("TZ", "UTC")
    time.tzset()
    main()
