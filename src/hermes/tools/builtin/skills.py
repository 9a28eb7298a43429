"""skills_list, skill_view and skill_manage: the agent's tools to read and write skills.

Reading needs no approval. Writing does: later agents follow a skill, outside the sandbox and beyond this
rollout, so the user approves its exact content first; of an edit, every line with the mark of its change.
Bundled skills are never changed; a skill of the same name under the home directory hides it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hermes.core import JSONObject, texts
from hermes.errors import HermesError, ToolError
from hermes.tools.base import Tool, Workbench, object_schema

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.skills.skill import Skill


_MOST_MATCHES = 5


async def skills_list(arguments: JSONObject, bench: Workbench) -> str:
    from hermes.skills.trials import skills_in_use

    catalogue = skills_in_use(_home(bench), _texts(bench))
    category = arguments.get("category")
    query = arguments.get("query")
    matching = catalogue.search(query) if query else catalogue.skills
    usable = [skill for skill in matching if _runs_here(skill)]
    if category and category not in catalogue.categories:
        raise ToolError(f"there is no category '{category}'; there are {', '.join(catalogue.categories)}.")
    usable = [skill for skill in usable if category in (None, skill.category)]
    if query:
        best = {skill.name: skill.listing for skill in usable[:_MOST_MATCHES]}
        return json.dumps({"skills": best}, ensure_ascii=False)
    lines: dict[str, dict[str, str]] = {}
    for skill in usable:
        lines.setdefault(skill.category, {})[skill.name] = skill.listing
    return json.dumps({"skills": lines, "categories": catalogue.categories}, ensure_ascii=False)


async def skill_view(arguments: JSONObject, bench: Workbench) -> str:
    from hermes.skills.catalogue import list_skills, read_skill_file, skill_files

    try:
        catalogue = list_skills(_home(bench)).with_bodies(texts.named(_texts(bench), texts.SKILL))
        skill = catalogue.find(arguments["name"])
        if "file_path" in arguments:
            return read_skill_file(skill, arguments["file_path"])
    except HermesError as error:
        raise _tool_error(error) from error
    data = {**skill.to_json(), "files": skill_files(skill), "content": skill.body}
    return json.dumps(data, ensure_ascii=False)


async def skill_manage(arguments: JSONObject, bench: Workbench) -> str:
    from hermes.skills.install import (
        check_content,
        content_diff,
        delete_skill,
        read_user_skill,
        save_skill,
        user_directory,
    )

    action, name, content = arguments["action"], arguments["name"], arguments.get("content", "")
    exists = user_directory(_home(bench), name) is not None
    if action != "create" and not exists:
        raise ToolError(f"there is no user skill '{name}'; bundled skills cannot be changed or deleted.")
    if action == "create" and exists:
        raise ToolError(f"the skill '{name}' exists already; use the action 'edit'.")
    if action != "delete" and not content:
        raise ToolError(f"'{action}' needs content: the whole SKILL.md.", kind="bad_arguments")
    try:
        if action == "delete":
            await bench.approver.approve("skill", f"delete the skill '{name}'")
            delete_skill(_home(bench), name)
            return f"deleted the skill '{name}'."
        check_content(name, content)  # before asking: an invalid skill cannot be saved
        before = read_user_skill(_home(bench), name) if action == "edit" else None
        if before == content:
            return f"the skill '{name}' has this content already."
        change = content if before is None else content_diff(before, content, whole=True)
        await bench.approver.approve("skill", f"{action} the skill '{name}':\n{change}")
        save_skill(_home(bench), name, content)
    except ToolError:
        raise
    except HermesError as error:
        raise _tool_error(error) from error
    if before is None:
        return f"saved the skill '{name}'."
    return f"saved the skill '{name}':\n{content_diff(before, content, whole=False)}"


def _home(bench: Workbench) -> Path:
    return cast(Path, bench.resources["home"])


def _texts(bench: Workbench) -> texts.Texts:
    return cast("Config", bench.resources["config"]).texts


def _runs_here(skill: Skill) -> bool:
    here = {"linux": "linux", "darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform)
    return not skill.platforms or here in skill.platforms


def _tool_error(error: HermesError) -> ToolError:
    return ToolError(f"{error.message} {error.hint}".strip())


_NAME = {"type": "string", "description": "Name of the skill."}

TOOLS: tuple[Tool, ...] = (
    Tool(
        name="skills_list",
        toolset="skills",
        description="List the skills: instructions for kinds of work. Open a fitting one with skill_view.",
        parameters=object_schema(
            query={
                "type": "string",
                "description": "Words of the task: the best five skills. Without it: all.",
            },
            category={"type": "string", "description": "Only this category."},
        ),
        handler=skills_list,
        stateless=True,
    ),
    Tool(
        name="skill_view",
        toolset="skills",
        description="Read a skill's instructions, or with file_path one of the files that come with it.",
        parameters=object_schema(
            "name",
            name=_NAME,
            file_path={
                "type": "string",
                "description": "A file of the skill, as skill_view lists them.",
            },
        ),
        handler=skill_view,
        stateless=True,
    ),
    Tool(
        name="skill_manage",
        toolset="skills",
        description="Keep what was learned: create, edit or delete one of the user's skills.",
        parameters=object_schema(
            "action",
            "name",
            action={"type": "string", "enum": ["create", "edit", "delete"]},
            name=_NAME,
            content={
                "type": "string",
                "description": "The whole SKILL.md: '---', YAML name and description, '---', Markdown.",
            },
        ),
        handler=skill_manage,
    ),
)
