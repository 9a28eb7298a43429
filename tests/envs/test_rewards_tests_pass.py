"""Hidden tests in a real sandbox: right code passes, and nothing else does."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hermes.config.settings import SandboxSettings
from hermes.envs.rewards.result import GraderError
from hermes.envs.rewards.tests_pass import Case, same_value, tests_pass
from hermes.sandbox import open_sandbox, unusable_reason
from hermes.sandbox.base import Sandbox

CASES = [Case(([1, 2],), 3), Case(([],), 0), Case(([-4, 4, 9],), 9)]

# A function named tests_pass would otherwise be collected.
tests_pass.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    if reason := unusable_reason("bubblewrap"):
        pytest.skip(f"needs bubblewrap: {reason}")
    opened = await open_sandbox(SandboxSettings(backend="bubblewrap"), interactive=False)
    yield opened
    await opened.close()


@pytest.mark.parametrize(
    "source",
    [
        "def f(xs):\n    return sum(xs)\n",
        "print('noise without a line end', end='')\ndef f(xs):\n    print('more')\n    return sum(xs)\n",
        "import sys\ndef f(xs):\n    sys.stderr.write('x' * 100000)\n    return sum(xs)\n",
    ],
)
async def test_right_code_passes_whatever_it_prints(sandbox: Sandbox, source: str) -> None:
    result = await tests_pass(sandbox, source, "f", CASES)
    assert (result.value, result.parts["tests"]) == (1.0, 1.0)


EXPLOITS = {
    "nothing": "",
    "no function": "def g(xs):\n    return sum(xs)\n",
    "syntax": "def f(xs:\n",
    "exit": "import sys\nsys.exit(0)\n",
    "hard exit": "import os\nos._exit(0)\n",
    "exit when called": "import os\ndef f(xs):\n    os._exit(0)\n",
    "always equal": "class S(int):\n    __eq__ = lambda a, b: True\n    __hash__ = int.__hash__\n"
    "def f(xs):\n    return S(5)\n",
    "not json": "def f(xs):\n    return object()\n",
    "nan": "def f(xs):\n    return float('nan')\n",
    "patched json": "import json\njson.dumps = lambda *a, **k: '{\"value\": 3}'\ndef f(xs):\n    return 1\n",
    "patched encoder": "import json\njson.JSONEncoder.encode = lambda *a: '[9]'\ndef f(xs):\n    return 9\n",
    "frames": "import sys\ndef f(xs):\n    return sys._getframe(1).f_globals['cases'].get('expected', 0)\n",
    "own replies": "import sys\ndef f(xs):\n    g = sys._getframe(1).f_globals\n    for v in range(50):\n"
    "        g['replies'].write(g['cases']['mark'] + '{\"value\": %d}\\n' % v)\n    return 3\n",
    "flood": "import sys\ndef f(xs):\n    g = sys._getframe(1).f_globals\n"
    "    g['replies'].write('x' * 20_000_000)\n    return sum(xs)\n",
    "constant": "def f(xs):\n    return 3\n",
    "true for one": "def f(xs):\n    return sum(xs) == 3\n",
    "endless": "def f(xs):\n    while True: pass\n",
    "fork bomb": "import os\ndef f(xs):\n    while True: os.fork()\n",
}


@pytest.mark.parametrize("name", EXPLOITS)
async def test_no_trick_passes(sandbox: Sandbox, name: str) -> None:
    result = await tests_pass(sandbox, EXPLOITS[name], "f", CASES, timeout_s=2)
    assert result.value == 0.0
    assert result.parts["tests"] < 1.0


async def test_what_lies_in_the_sandbox_has_no_say(sandbox: Sandbox) -> None:
    for name in ("json.py", "io.py", "sitecustomize.py", "conftest.py", "usercustomize.py"):
        await sandbox.write_file(name, b"raise SystemExit(0)\n")
    result = await tests_pass(sandbox, "def f(xs):\n    return sum(xs)\n", "f", CASES)
    assert result.value == 1.0


async def test_a_sandbox_without_python_is_the_graders_failure_and_so_is_a_lack_of_tests(
    sandbox: Sandbox,
) -> None:
    class Bare:
        """The same sandbox, as if it had an empty search path."""

        async def write_file(self, path: str, data: bytes) -> None:
            await sandbox.write_file(path, data)

        async def run(self, command: str, **options: object):  # type: ignore[no-untyped-def]
            return await sandbox.run(f"PATH=/nowhere; {command}", **options)  # type: ignore[arg-type]

    with pytest.raises(GraderError, match="cannot run Python"):
        await tests_pass(Bare(), "def f(xs):\n    return sum(xs)\n", "f", CASES)
    with pytest.raises(GraderError, match="no tests"):
        await tests_pass(sandbox, "", "f", [])


@pytest.mark.parametrize(
    ("given", "expected", "same"),
    [
        (1, 1, True),
        (True, 1, False),
        (1, True, False),
        (1.0, 1, False),
        (1, 1.0, True),
        (0.1 + 0.2, 0.3, True),
        ("1", 1, False),
        ([1, 2], [1, 2], True),
        ([1, 2, 3], [1, 2], False),
        ([True], [1], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        (None, None, True),
        (None, 0, False),
    ],
)
def test_values_are_the_same_only_as_json_has_it(given: object, expected: object, same: bool) -> None:
    assert same_value(given, expected) is same
