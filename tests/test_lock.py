"""requirements.lock: the packages of constraints.txt, each with hashes that pip demands."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock_script", ROOT / "scripts" / "lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lock_file_has_the_packages_of_the_constraints_with_hashes(lock: ModuleType) -> None:
    text = (ROOT / "requirements.lock").read_text()
    entries = re.findall(
        r"^(\S+==\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE
    )
    assert dict(entry.split("==") for entry, _ in entries) == lock.pins(
        (ROOT / "constraints.txt").read_text()
    ), "constraints.txt has changed: run python scripts/lock.py"
    assert all(hashes.count("--hash") >= 1 for _, hashes in entries)


def test_an_index_page_gives_the_files_of_one_version(lock: ModuleType) -> None:
    def anchor(name: str, letter: str) -> str:
        return f'<a href="https://files/{name}#sha256={letter * 64}" data-requires-python="&gt;=3">{name}</a>'

    page = "".join(
        [
            anchor("Some_Pack-1.0-py3-none-any.whl", "a"),
            anchor("some-pack-1.0.0.tar.gz", "b"),
            anchor("some_pack-1.0.1.tar.gz", "c"),
            anchor("some_pack-1.0.post1-py3-none-any.whl", "d"),
            anchor("other-1.0.tar.gz", "e"),
            '<a href="https://files/some_pack-1.0.zip">no hash</a>',
        ]
    )
    assert lock.hashes(page, "some.pack", "1.0") == ["a" * 64, "b" * 64]
    assert lock.hashes(page, "some.pack", "1.0.post1") == ["d" * 64]


def test_pip_refuses_a_file_that_was_exchanged(tmp_path: Path) -> None:
    wheel = tmp_path / "zss-1.2.0-py3-none-any.whl"
    wheel.write_bytes(b"PK\x05\x06" + bytes(18))
    text = (ROOT / "requirements.lock").read_text()
    entry = re.search(r"^zss==\S+ \\\n(?:    --hash=\S+(?: \\)?\n)+", text, re.MULTILINE)
    assert entry is not None
    (tmp_path / "one.lock").write_text(entry[0])
    pip = [sys.executable, "-m", "pip", "download", "--isolated", "--no-deps", "--no-index"]
    pip += ["--require-hashes", "--find-links", str(tmp_path), "--dest", str(tmp_path / "out")]
    done = subprocess.run(
        [*pip, "--requirement", str(tmp_path / "one.lock")], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
