"""Skills: the bundled library and the user's own."""

from __future__ import annotations

from starlette.responses import Response

from hermes.skills.catalogue import list_skills, skill_files
from hermes.web.requests import WebRequest


def show(request: WebRequest) -> Response:
    query = request.text("q", max_chars=200)
    catalogue = list_skills(request.context.home)
    skills = catalogue.search(query) if query else catalogue.skills
    values = {"skills": skills, "broken": catalogue.broken, "query": query, "total": len(catalogue.skills)}
    return request.page("skills.html", values)


def show_skill(request: WebRequest) -> Response:
    skill = list_skills(request.context.home).find(request.path_values["skill"])
    return request.page("skill.html", {"skill": skill, "files": skill_files(skill)})


ROUTES = (("GET", "/skills", show), ("GET", "/skills/{skill:path}", show_skill))
