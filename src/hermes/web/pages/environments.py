"""Environments: what there is, whether it passes its checks, one task tried."""

from __future__ import annotations

from typing import Any

from starlette.responses import RedirectResponse, Response

from hermes.disk.files import read_text
from hermes.web.jobs import run_hermes
from hermes.web.requests import WebRequest
from hermes.web.responses import PageError
from hermes.web.runs.fields import find_listed

_ACTIONS = ("check", "try")


def show(request: WebRequest) -> Response:
    discovery = request.context.environments()
    rows = [(environment, _last_check(request, environment.name)) for environment in discovery.environments]
    return request.page("environments.html", {"rows": rows, "broken": discovery.broken})


def act(request: WebRequest) -> Response:
    """Checks an environment, or tries one of its tasks with the untrained policy, in a job."""
    action = request.path_values["action"]
    if action not in _ACTIONS:
        raise PageError(404, f"an environment cannot be asked to '{action[:40]}'")
    name = request.field("environment", max_chars=200)
    environment = find_listed(request.context.environments(), name)
    title = f"Check of {name}" if action == "check" else f"One task of {name}, with the untrained policy"
    question = request.confirmation(title, [str(environment.path)], "/environments")
    if question is not None:
        return question
    if action == "check":
        arguments: tuple[str, ...] = ("env", "check", str(environment.path))
    else:
        run_hermes(request.context.home, ["rl", "select", name])
        arguments = ("rl", "preflight", "--groups", "1")
    job = request.context.jobs.start(title, arguments, "/environments", f"{action}-{name}")
    return RedirectResponse(f"/jobs/{job.job_id}", 303)


def _last_check(request: WebRequest, name: str) -> dict[str, Any] | None:
    """When the last check ended, and its last line."""
    path = request.context.jobs.log_path(f"check-{name}")
    text = read_text(path)
    if text is None:
        return None
    rows = [
        line.split(None, 1)
        for line in text.splitlines()
        if line.strip() and not line.startswith(("STATE", "("))  # the heading, and signs of life
    ]
    problems = [" ".join(row) for row in rows if row[0] != "ok"]
    passed = len(rows) - len(problems)
    line = problems[0] if problems else f"{passed} checks passed"
    return {"at_ms": int(path.stat().st_mtime * 1000), "line": line, "failed": bool(problems)}


ROUTES = (("GET", "/environments", show), ("POST", "/environments/{action:str}", act))
