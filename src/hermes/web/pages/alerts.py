"""Alert rules: added and removed in the browser, stored as the setting `rl.alerts`."""

from __future__ import annotations

import json

from starlette.responses import RedirectResponse, Response

from hermes.config.edit import set_value
from hermes.training.monitor.incidents.alerts import parse_rule
from hermes.web.requests import WebRequest
from hermes.web.responses import PageError

_MAX_RULES = 50
_KEY = "rl.alerts"


def add(request: WebRequest) -> Response:
    rule = parse_rule(request.field("rule", max_chars=200)).text
    rules = [entry.text for entry in request.context.alert_rules()]
    if rule in rules:
        raise PageError(409, f"there is a rule '{rule}' already")
    if len(rules) >= _MAX_RULES:
        raise PageError(409, f"there are {_MAX_RULES} rules already", "Remove one first.")
    set_value(request.context.home, _KEY, json.dumps([*rules, rule]))
    return RedirectResponse("/runs#alerts", 303)


def remove(request: WebRequest) -> Response:
    rule = parse_rule(request.field("rule", max_chars=200)).text
    rules = [entry.text for entry in request.context.alert_rules()]
    if rule not in rules:
        raise PageError(404, f"there is no rule '{rule}'", "The page Runs lists them.")
    rules.remove(rule)
    set_value(request.context.home, _KEY, json.dumps(rules))
    return RedirectResponse("/runs#alerts", 303)


ROUTES = (("POST", "/runs/alerts/add", add), ("POST", "/runs/alerts/remove", remove))
