"""Skills: the bundled library and the user's own."""

from __future__ import annotations

from starlette.responses import Response

from hermes.config.paths import skills_dir
from hermes.skills.catalogue import LIBRARY, Catalogue, list_skills, skill_files
from hermes.web.caches import modified
from hermes.web.requests import WebRequest


def show(request: WebRequest) -> Response:
    query = request.text("q", max_chars=200)
    catalogue = _catalogue(request)
    skills = catalogue.search(query) if query else catalogue.skills
    values = {"skills": skills, "broken": catalogue.broken, "query": query, "total": len(catalogue.skills)}
    return request.page("skills.html", values)


def show_skill(request: WebRequest) -> Response:
    skill = _catalogue(request).find(request.path_values["skill"])
    return request.page("skill.html", {"skill": skill, "files": skill_files(skill)})


def _catalogue(request: WebRequest) -> Catalogue:
    home = request.context.home
    files = [
        path for root in (LIBRARY, skills_dir(home)) if root.is_dir() for path in root.glob("**/SKILL.md")
    ]
    return request.context.skills.get(modified(files), lambda: list_skills(home))


ROUTES = (("GET", "/skills", show), ("GET", "/skills/{skill:path}", show_skill))
