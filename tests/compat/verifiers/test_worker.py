"""Environments of verifiers without the package: exact tokens, and a sentence for what can be wrong."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hermes.core import Sampling
from hermes.envs.cli.discover import find_environments
from hermes.envs.cli.run import load_class
from hermes.envs.failures import GroupDroppedError
from hermes.envs.tokenise import load_tokenizer
from hermes.errors import HermesError, ProviderError
from hermes.gateway.sampled import SampledGateway, SampledRollout
from tests.compat.verifiers.world import CLASSIC, assert_exact, install_stand_in, make, speaker
from tests.envs.token_source import Answer, TokenServer, Words
from tests.rl.world import tiny_tokenizer

if TYPE_CHECKING:
    pass

CALL = '<tool_call>\n{"name": "double", "arguments": {"x": 2}}\n</tool_call><|im_end|>'
FINAL = "It is 4.<|im_end|>"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path of the worker, with a package of the classic API in it."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "doubling.py").write_text(CLASSIC)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    return packages


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(path, 4096, words=["double"])
    return path


@pytest.fixture
def words(tokenizer_folder: Path) -> Words:
    return Words(load_tokenizer(str(tokenizer_folder)), "double")


async def test_a_rollout_with_tools_trains_exactly_what_was_sampled(
    folder: Path, tokenizer_folder: Path, words: Words
) -> None:
    install_stand_in(folder, "0.3.1")
    with speaker(words.encode, words.decode, CALL, FINAL) as server:
        env = make("doubling", server.base_url, tokenizer_folder, sys.executable)
        await env.setup()
        (group,), _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert_exact(group, server, words.encode, CALL, FINAL)
    assert group["scores"] == [1.0, 1.0]
    assert [message["role"] for message in group["messages"][0]] == ["user", "assistant", "tool", "assistant"]
    assert group["overrides"][0]["policy_versions"] == ["step-7"]
    assert group["overrides"][0]["temperature"] == 1.0


async def test_a_model_server_that_fails_is_no_score(
    folder: Path, tokenizer_folder: Path, words: Words
) -> None:
    install_stand_in(folder, "0.3.1")
    with TokenServer(lambda ids, params: Answer([], [], status=400)) as server:
        env = make("doubling", server.base_url, tokenizer_folder, sys.executable)
        await env.setup()
        with pytest.raises(ProviderError, match="scripted failure"):
            await env.collect_trajectories(await env.get_next_item())
        await env.close()


async def test_an_environment_that_raises_drops_its_group_and_says_where(
    folder: Path, tokenizer_folder: Path, words: Words
) -> None:
    install_stand_in(folder, "0.3.1")
    with speaker(words.encode, words.decode, FINAL) as server:
        env = make("doubling", server.base_url, tokenizer_folder, sys.executable, args={"numbers": [13]})
        await env.setup()
        with pytest.raises(GroupDroppedError, match=r"thirteen is unlucky.*doubling\.py:\d+"):
            await env.collect_trajectories(await env.get_next_item())
        await env.close()


async def test_evaluations_use_tasks_that_training_never_gets(
    folder: Path, tokenizer_folder: Path, tmp_path: Path, words: Words
) -> None:
    install_stand_in(folder, "0.3.1")
    results = tmp_path / "results"
    with speaker(words.encode, words.decode, FINAL) as server:
        settings = {"args": {"numbers": list(range(8))}, "data_dir_to_save_evals": str(results)}
        env = make("doubling", server.base_url, tokenizer_folder, sys.executable, **settings)
        await env.setup()
        trained = {(await env.get_next_item()).index for _ in range(12)}
        held_out = {ref.index for ref in env.eval_refs()}
        await env.evaluate()
        await env.close()
    assert trained == {0, 1, 2, 3, 4, 5} and held_out == {6, 7}
    assert json.loads((results / "metrics.json").read_text())["results"]["all"]["eval/samples"] == 2


BROKEN = {
    "no_environment": ("x = 1\n", "has no environment"),
    "raises": ("raise RuntimeError('no luck')\n", r"could not be loaded.*no luck.*raises\.py:1"),
    "hub": (
        "class DatasetNotFoundError(Exception): pass\n"
        "def load_environment():\n    raise DatasetNotFoundError('some/dataset')\n",
        "needs data from the hub",
    ),
    "exits": ("import os\nos._exit(0)\n", "the process that ran exits ended"),
    "exits_and_stays": (
        "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nos._exit(0)\n",
        "the process that ran exits_and_stays ended",
    ),
    "exits_and_hides": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(30)\nos._exit(0)\n",
        "the process that ran exits_and_hides ended",
    ),
    "raises_and_stays": (
        "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nraise RuntimeError('no luck')\n",
        "could not be loaded.*no luck",
    ),
    "exits_softly": ("raise SystemExit(0)\n", "exits_softly"),
    "recurses": ("def load_environment(): return load_environment()\n", "recursion"),
    "forges": (
        "import os\nfor fd in range(3, 30):\n"
        "    try: os.write(fd, b'{\"id\": 1, \"result\": 7}\\n[1]\\n' + b'x' * 100 + b'\\n')\n"
        "    except OSError: pass\n"
        "import time; time.sleep(600)\n",
        "forges",
    ),
    "endless_line": (
        "import os\nfor fd in range(3, 30):\n"
        "    try:\n        while True: os.write(fd, b'x' * (1 << 20))\n"
        "    except OSError: pass\n",
        "the process that ran endless_line ended",
    ),
    "grouped": (
        "class Env:\n    requires_group_rollouts = True\n    run_rollout = env_id = None\n"
        "    def get_dataset(self): return []\n    def build_eval_dataset(self): return None\n"
        "def load_environment(): return Env()\n",
        "compare the rollouts of a group",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_package_that_cannot_run_gets_a_sentence(folder: Path, name: str) -> None:
    source, sentence = BROKEN[name]
    install_stand_in(folder, "0.3.1")
    (folder / f"{name}.py").write_text(source)
    env = make(name, "http://127.0.0.1:9/v1", folder, sys.executable)
    with pytest.raises(HermesError, match=sentence) as caught:
        await env.setup()
    await env.close()
    assert caught.value.hint


async def test_missing_parts_are_named_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    async def problem(package: str, python: str) -> HermesError:
        env = make(package, "http://127.0.0.1:9/v1", folder, python)
        with pytest.raises(HermesError) as caught:
            await env.setup()
        await env.close()
        return caught.value

    absent = await problem("doubling", str(tmp_path / "nowhere" / "python"))
    assert "there is no interpreter" in absent.message and "hermes env verifiers install" in absent.hint
    without = await problem("doubling", sys.executable)
    assert "has no package 'verifiers'" in without.message and "hermes env verifiers install" in without.hint
    install_stand_in(folder, "0.9.0")
    newer = await problem("doubling", sys.executable)
    assert "verifiers 0.9.0" in newer.message and "0.3.1" in newer.hint
    (folder / "verifiers-0.9.0.dist-info" / "METADATA").write_text("Name: verifiers\nVersion: 0.4.0\n")
    (folder / "old.py").write_text("from verifiers import SingleTurnEnv\n")
    classic = await problem("old", sys.executable)
    assert "classic API" in classic.message and "--version 0.3.1" in classic.hint
    unknown = await problem("owner/nothing-here", sys.executable)
    assert "no module 'nothing_here'" in unknown.message and "pip install owner/nothing-here" in unknown.hint


class NoModel:
    name = "none"

    async def complete(self, request: Any, on_delta: Any = None) -> Any:
        pytest.fail("no model is called")

    async def close(self) -> None: ...


async def test_the_address_of_a_rollout_ends_with_it() -> None:
    gateway = SampledGateway()
    await gateway.open()
    calls = SampledRollout(NoModel(), Sampling())

    def status(base_url: str) -> int:
        request = urllib.request.Request(f"{base_url}/chat/completions", b"{}", method="POST")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=60)
        return caught.value.code

    with gateway.rollout(calls) as path:
        url = f"{gateway.url}{path}"
        assert await asyncio.to_thread(status, f"{url}/v1") == 400, "it has no messages"
        assert await asyncio.to_thread(status, f"{url}x/v1") == 404
    assert await asyncio.to_thread(status, f"{url}/v1") == 404
    await gateway.close()


def test_a_file_that_names_a_package_is_listed_and_run(tmp_path: Path) -> None:
    """As docs/verifiers.md has it, for training runs."""
    page = (Path(__file__).parents[3] / "docs" / "verifiers.md").read_text()
    source = page.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "mine.py").write_text(source)
    (listed,) = [each for each in find_environments([tmp_path]).environments if each.path.parent == tmp_path]
    assert (listed.name, listed.class_name) == ("my-environment", "MyEnv")
    assert load_class(tmp_path / "mine.py").config_init()[0].package == "my-environment"  # type: ignore[attr-defined]
