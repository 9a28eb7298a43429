"""Skills: the bundled library and the user's own."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from hermes.config.paths import skills_dir
from hermes.skills.catalogue import LIBRARY, Catalogue, list_skills, skill_files
from hermes.skills.drafts import accept, drafts, find_draft, refuse
from hermes.skills.skill import MAX_SKILL_BYTES
from hermes.web.caches import modified
from hermes.web.requests import WebRequest


def show(request: WebRequest) -> Response:
    query = request.text("q", max_chars=200)
    catalogue = _catalogue(request)
    skills = catalogue.search(query) if query else catalogue.skills
    values = {"skills": skills, "broken": catalogue.broken, "query": query, "total": len(catalogue.skills)}
    values["drafts"] = drafts(request.context.home)
    return request.page("skills.html", values)


def show_skill(request: WebRequest) -> Response:
    skill = _catalogue(request).find(request.path_values["skill"])
    return request.page("skill.html", {"skill": skill, "files": skill_files(skill)})


def show_draft(request: WebRequest) -> Response:
    return request.page(
        "draft.html", {"draft": find_draft(request.context.home, request.path_values["draft"])}
    )


def decide(request: WebRequest) -> Response:
    """Accepts the draft as the form has it, or refuses it."""
    home, name = request.context.home, request.path_values["draft"]
    if request.field("action", max_chars=20) == "refuse":
        refuse(home, name)
        return RedirectResponse("/skills", 303)
    skill = accept(home, name, request.field("text", max_chars=MAX_SKILL_BYTES).replace("\r\n", "\n"))
    return RedirectResponse(f"/skills/{skill.name}", 303)


def _catalogue(request: WebRequest) -> Catalogue:
    home = request.context.home
    files = [
        path for root in (LIBRARY, skills_dir(home)) if root.is_dir() for path in root.glob("**/SKILL.md")
    ]
    return request.context.skills.get(modified(files), lambda: list_skills(home))


ROUTES = (
    ("GET", "/skills", show),
    ("GET", "/skills/drafts/{draft:str}", show_draft),
    ("POST", "/skills/drafts/{draft:str}", decide),
    ("GET", "/skills/{skill:path}", show_skill),
)
