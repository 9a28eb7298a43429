"""A request under the texts of a policy, in each protocol. Pure.

The system prompt and the examples are for a request that has no system prompt: a client that has one works by
it. A tool that the request offers gets the description that the policy has for its name. What is about skills
and files is an agent's own business, and left out.
"""

from __future__ import annotations

from hermes.core import JSONObject, Role
from hermes.core.texts import EXAMPLES, SYSTEM_PROMPT, TOOL, Texts, named, prompt_with
from hermes.gateway.wire import Protocol, read_request
from hermes.models.fields import as_object, as_objects


def with_texts(protocol: Protocol, body: JSONObject, texts: Texts) -> tuple[JSONObject, Texts]:
    """The request, and those of the texts that are in it."""
    changed, used = dict(body), {}
    prompt = prompt_with(texts, "")
    if prompt and not any(message.role is Role.SYSTEM for message in read_request(protocol, body).messages):
        used = {name: texts[name] for name in (SYSTEM_PROMPT, EXAMPLES) if texts.get(name)}
        changed |= _system_prompt(protocol, prompt, body)
    descriptions, tools = named(texts, TOOL), []
    for tool in as_objects(body.get("tools")):
        function = as_object(tool.get("function")) if protocol is Protocol.CHAT else tool
        name = str(function.get("name"))
        if name in descriptions:
            used[f"{TOOL}{name}"] = descriptions[name]
            function = {**function, "description": descriptions[name]}
            tool = {**tool, "function": function} if protocol is Protocol.CHAT else function
        tools.append(tool)
    return {**changed, **({"tools": tools} if tools else {})}, used


def is_served(name: str) -> bool:
    """Whether a text of this name can be put around a request."""
    return name in (SYSTEM_PROMPT, EXAMPLES) or name.startswith(TOOL)


def _system_prompt(protocol: Protocol, prompt: str, body: JSONObject) -> JSONObject:
    match protocol:
        case Protocol.CHAT:
            return {"messages": [{"role": "system", "content": prompt}, *as_objects(body.get("messages"))]}
        case Protocol.RESPONSES:
            return {"instructions": prompt}
        case Protocol.MESSAGES:
            return {"system": prompt}
