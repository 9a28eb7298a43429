"""A job: what it does, what it has printed, whether it has ended."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from hermes.web.requests import WebRequest


def show(request: WebRequest) -> Response:
    job = request.context.jobs.get(request.path_values["job"])
    values = {"job": job, "output": job.output(), "running": job.running, "exit_code": job.exit_code}
    return request.page("job_part.html" if request.from_script else "job.html", values)


def stop(request: WebRequest) -> Response:
    job = request.context.jobs.get(request.path_values["job"])
    request.context.jobs.stop(job)
    return RedirectResponse(f"/jobs/{job.job_id}", 303)


ROUTES = (("GET", "/jobs/{job:str}", show), ("POST", "/jobs/{job:str}/stop", stop))
