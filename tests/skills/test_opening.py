"""Finding the right skill: the 40 tasks of bench/skills, by search and by models that read the prompt."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.toolset_choice import lists_all_skills
from hermes.config.load import load
from hermes.skills.catalogue import bundled_skills
from tests.cli.process import hermes
from tests.fakes.provider import FakeProvider, Reply, text, tool_calls

FOLDER = Path(__file__).parents[2] / "bench" / "skills"
TASKS = [json.loads(line) for line in (FOLDER / "tasks.jsonl").read_text().splitlines()]


def test_there_are_forty_tasks_and_their_skills_exist() -> None:
    names = {skill.name for skill in bundled_skills().skills}
    assert len({task["prompt"] for task in TASKS}) == 40
    assert {name for task in TASKS for name in task["expected"]} - names == set()


def test_the_search_has_the_right_skill_among_the_first_five() -> None:
    catalogue, fitting = bundled_skills(), [task for task in TASKS if task["expected"]]
    ranked = [[skill.name for skill in catalogue.search(task["prompt"])] for task in fitting]
    first = [names[0] in task["expected"] for names, task in zip(ranked, fitting, strict=True)]
    five = [set(names[:5]) & set(task["expected"]) for names, task in zip(ranked, fitting, strict=True)]
    assert all(five) and sum(first) >= 30
    assert [catalogue.search(name)[0].name for name in ("rl", "ray", "peft")] == ["rl", "ray", "peft"]


@pytest.mark.parametrize(
    ("model", "lists"),
    [
        ("openai/gpt-4o", True),
        ("openrouter/qwen/qwen3-235b-a22b", True),
        ("ollama/llama3.2:3b", False),
        ("vllm/Qwen/Qwen2.5-7B-Instruct", False),
        ("hermes/smollm2", False),
    ],
)
def test_small_models_get_one_line_instead_of_forty(tmp_path: Path, model: str, lists: bool) -> None:
    assert lists_all_skills(load({}, {"HERMES_HOME": str(tmp_path)}), model) is lists
    for choice in ("all", "search"):
        config = load({"skill_list": choice}, {"HERMES_HOME": str(tmp_path)})
        assert lists_all_skills(config, model) is (choice == "all")


def searcher(request: dict[str, Any]) -> Reply:
    """A model that searches with the user's words and opens the first skill of the answer, if any."""
    messages = request["messages"]
    system, task = messages[0]["content"], messages[1]["content"]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    assert "search them with skills_list" in system and "- axolotl:" not in system
    if not results:
        return tool_calls([("skills_list", {"query": task})])
    names = list(json.loads(results[0])["skills"])
    if len(results) == 1 and names:
        return tool_calls([("skill_view", {"name": names[0]})])
    return text("Done.")


def test_a_batch_over_the_tasks_says_how_often_the_right_skill_is_opened(tmp_path: Path) -> None:
    with FakeProvider(searcher) as provider:
        done = hermes(
            tmp_path,
            *(
                "batch",
                "--dataset-file",
                str(FOLDER / "tasks.jsonl"),
                "--reward",
                f"{FOLDER}/opened.py:opened",
            ),
            *("--toolsets", "skills", "--run-name", "skills", "--max-turns", "4", "--sandbox", "local"),
            *("--model", "tiny-3b", "--base-url", provider.base_url, "--output-dir", str(tmp_path / "data")),
            env={"TMPDIR": str(tmp_path)},
        )
    assert done.returncode == 0, done.stderr
    status = hermes(tmp_path, "batch", "status", "skills", "--output-dir", str(tmp_path / "data"))
    mean = re.search(r"reward\D*([\d.]+)", status.stdout)
    assert mean is not None, status.stdout
    found = sum(
        bundled_skills().search(task["prompt"])[0].name in task["expected"]
        for task in TASKS
        if task["expected"]
    )
    assert float(mean[1]) == pytest.approx(found / 40, abs=0.005)
