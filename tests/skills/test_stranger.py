"""Three skills on the path of a stranger: from the name in a list to something that the real package accepts.

The first two download a package once (a wheel, a source distribution), so they are slow ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hermes.skills import Skill, list_skills
from skills_check.registry import RegistryError, download, index_url
from skills_check.shell_block import commands
from skills_check.skill_check import pages
from tests.cli.process import hermes
from tests.fakes.arxiv import serve_arxiv


def installed(home: Path, name: str, query: str) -> Skill:
    """A stranger searches, sees the name among the first, and installs the skill."""
    hits = json.loads(hermes(home, "skills", "search", query, "--json").stdout)
    assert name in [hit["name"] for hit in hits[:3]]
    done = hermes(home, "skills", "install", f"official/{hits[0]['category']}/{name}", "--yes", "--json")
    assert json.loads(done.stdout)["name"] == name
    return list_skills(home).find(name)


def archive(skill: Skill, cache: Path) -> Path:
    package = skill.packages[0]
    try:
        return download(package.name, package.version, cache, index_url())
    except RegistryError as error:
        if error.offline:
            pytest.skip(f"needs the Python registry: {error.message}")
        raise


def unpack(archive: Path, target: Path) -> Path:
    """The folder with the sources of a wheel or a source distribution; what is compiled stays in there."""
    suffixes = (".py", ".json", ".jinja")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(target, [name for name in wheel.namelist() if name.endswith(suffixes)])
        return target
    with tarfile.open(archive) as distribution:
        members = [member for member in distribution if member.name.endswith(suffixes)]
        distribution.extractall(target, members, filter="data")
    (folder,) = target.iterdir()
    return folder


def run_script(
    script: Path, *arguments: str, timeout_s: float = 900, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **environ},
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_axolotl_configuration_is_validated_by_the_real_schema(tmp_path: Path) -> None:
    skill = installed(tmp_path, "axolotl", "axolotl fine-tuning")
    wheel = archive(skill, tmp_path / "cache")
    script, template = (
        skill.directory / path for path in ("scripts/validate_config.py", "templates/sft-lora.yaml")
    )
    environ = {"PYTHONPATH": str(wheel)}  # a pure wheel is importable as it is
    good = run_script(script, str(template), **environ)
    assert good.returncode == 0, good.stdout + good.stderr
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(template.read_text() + "\nlearning_rat: 0.1\nnum_epochs: many\n")
    bad = run_script(script, str(wrong), **environ)
    assert bad.returncode == 1 and "learning_rat" in bad.stdout + bad.stderr


MISTAKES = {
    "--tensor-parallel-sise 2": "unrecognized arguments: --tensor-parallel-sise",
    "--port many": "invalid int value",
    "--dtype float12": "invalid choice",
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_vllms_own_parser_takes_every_command_line_of_the_skill(tmp_path: Path) -> None:
    skill = installed(tmp_path, "vllm", "vllm serve")
    source = unpack(archive(skill, tmp_path / "cache"), tmp_path / "vllm")
    lines = [
        words[2:]
        for page in pages(skill)
        for block in page.blocks
        if block.language == "bash" and not block.skip
        for _, words in commands(block.text)
        if words[:2] == ["vllm", "serve"]
    ]
    assert len(lines) >= 2, "the skill shows how to serve"
    # Classes of vLLM derive from msgspec's: an empty module in its place would not do.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(source)]
    subprocess.run([*pip, "msgspec"], check=True)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("vllm_parser.py")), str(source)],
        input=json.dumps([*lines, *(["model", *mistake.split()] for mistake in MISTAKES)]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["options"]) > 200
    named = {
        span.text.split()[0] for page in pages(skill) for span in page.spans if span.text.startswith("--")
    }
    foreign = {*skill.other_flags, "--format", "--base-url", "--openai.server_type"}
    assert len(named) > 20 and named - foreign <= set(answer["options"])
    assert answer["problems"][: len(lines)] == [None] * len(lines)
    for expected, problem in zip(MISTAKES.values(), answer["problems"][len(lines) :], strict=True):
        assert expected in problem


def test_the_arxiv_script_answers_from_a_server_and_then_from_its_cache(tmp_path: Path) -> None:
    skill = installed(tmp_path, "arxiv", "arxiv papers")
    script = skill.directory / "scripts" / "arxiv_search.py"
    with serve_arxiv() as (url, requested):
        common = ("--base-url", url, "--cache-dir", str(tmp_path / "papers"), "--delay", "0")
        first = run_script(script, "bibtex", "2106.09685", *common)
        assert first.returncode == 0, first.stderr
        again = run_script(script, "bibtex", "2106.09685", *common, "--offline")
    assert "LoRA: Low-Rank Adaptation" in first.stdout and "Edward J. Hu and Yelong Shen" in first.stdout
    assert again.stdout == first.stdout and requested == ["2106.09685"]
