"""Three skills on the path of a stranger: from the name in a list to something that the real package accepts.

The first two download a package once (a wheel, a source distribution), so they are slow ones.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.skills import Skill, list_skills
from hermes.skills.check.package_source import PackageSource, read_archive
from hermes.skills.check.registry import RegistryError, download, index_url
from hermes.skills.check.shell_block import commands
from hermes.skills.check.skill_check import pages
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


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_vllm_option_of_the_skill_is_one_of_its_parser(tmp_path: Path) -> None:
    skill = installed(tmp_path, "vllm", "vllm serve")
    source = read_archive(skill.packages[0], archive(skill, tmp_path / "cache"))
    options = serve_options(source)
    used = {
        word.partition("=")[0]
        for page in pages(skill)
        for block in page.blocks
        if block.language == "bash" and not block.skip
        for _, words in commands(block.text)
        if words[:2] == ["vllm", "serve"]
        for word in words
        if word.startswith("--")
    }
    assert len(used) >= 5, "the skill shows how to serve"
    assert {flag for flag in used if flag.replace("_", "-") not in options} == set()
    assert "--tensor-parallel-sise" not in options


def serve_options(source: PackageSource) -> set[str]:
    """The options that `vllm serve` registers, read from the files that build its parser.

    Most are strings in calls of add_argument; the others are made from the fields of a dataclass there.
    """
    places = r"vllm/(engine/arg_utils|entrypoints/launchers/cli_args|entrypoints/cli/serve)\.py$"
    files = [path for path in source.modules.values() if re.search(places, path)]
    assert len(files) >= 2
    text = "\n".join(source.text(path) for path in files)
    written = set(re.findall(r"\"(--[a-z][\w-]*)\"", text))
    fields = {f"--{name}" for name in re.findall(r"^    ([a-z]\w+): [^\n]+", text, re.M)}
    return {option.replace("_", "-") for option in written | fields}


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
