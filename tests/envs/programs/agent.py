#!/usr/bin/env python3
"""An agent of a stranger, standard library only: asks its model, runs shell calls, sends rewritten history.

agent.py [--dialect chat|messages|responses] [--stream] [--rewrite] [--act ACT] PROMPT
"""

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

BASE = os.environ.get("HERMES_BASE_URL", "")
SHELL = {
    "description": "Runs a command.",
    "name": "shell",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
}


def post(path, body, headers=()):
    request = urllib.request.Request(
        f"{BASE}{path}", json.dumps(body).encode(), {"content-type": "application/json", **dict(headers)}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


def events(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def rewritten(arguments, options):
    """As clients do it: keys in another order, other white space."""
    if not options.rewrite:
        return arguments
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return json.dumps({"raw": arguments})
    return json.dumps(dict(reversed(parsed.items())), indent=1)


def ask_chat(history, options):
    tools = {} if options.plain else {"tools": [{"type": "function", "function": SHELL}]}
    body = {"model": options.model, "messages": history, **tools}
    text = post("/v1/chat/completions", {**body, "stream": options.stream, "temperature": 0.0})
    if options.stream:
        message = {"role": "assistant", "content": "", "tool_calls": []}
        for event in events(text):
            for choice in event["choices"]:
                message["content"] += choice["delta"].get("content") or ""
                message["tool_calls"] += choice["delta"].get("tool_calls") or []
    else:
        message = json.loads(text)["choices"][0]["message"]
    message.pop("reasoning_content", None)
    for call in message.get("tool_calls") or []:
        call.pop("index", None)
        call["function"]["arguments"] = rewritten(call["function"]["arguments"], options)
    if not message.get("tool_calls"):
        message.pop("tool_calls", None)
    message["content"] = (message["content"] or "").strip()
    calls = [(c["id"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
    return [message], message["content"], calls


def ask_messages(history, options):
    tool = {"name": "shell", "description": SHELL["description"], "input_schema": SHELL["parameters"]}
    body = {"model": "policy", "messages": history, "tools": [tool], "max_tokens": 32_000}
    headers = {"anthropic-version": "2023-06-01"}
    text = post("/v1/messages?beta=true", {**body, "stream": options.stream}, headers)
    if options.stream:
        blocks = {}
        for event in events(text):
            if event["type"] == "content_block_start":
                blocks[event["index"]] = {**event["content_block"], "json": ""}
            elif event["type"] == "content_block_delta":
                block, delta = blocks[event["index"]], event["delta"]
                block["text"] = block.get("text", "") + delta.get("text", "")
                block["json"] += delta.get("partial_json", "")
        content = []
        for _, block in sorted(blocks.items()):
            if block["type"] == "text":
                content.append({"type": "text", "text": block["text"]})
            elif block["type"] == "tool_use":
                found = json.loads(block["json"] or "{}")
                content.append({"type": "tool_use", "id": block["id"], "name": block["name"], "input": found})
    else:
        content = [b for b in json.loads(text)["content"] if b["type"] != "thinking"]
    said = "".join(block["text"] for block in content if block["type"] == "text")
    calls = [(b["id"], json.dumps(b["input"])) for b in content if b["type"] == "tool_use"]
    return [{"role": "assistant", "content": content}], said, calls


def ask_responses(history, options):
    body = {"model": "policy", "input": history, "tools": [{"type": "function", **SHELL}], "store": False}
    text = post("/v1/responses", {**body, "stream": options.stream})
    if options.stream:
        output = next(e["response"]["output"] for e in events(text) if e["type"] == "response.completed")
    else:
        output = json.loads(text)["output"]
    items, said, calls = [], "", []
    for item in output:
        if item["type"] == "message":
            said += "".join(part["text"] for part in item["content"])
            items.append({"type": "message", "role": "assistant", "content": item["content"]})
        elif item["type"] == "function_call":
            arguments = rewritten(item["arguments"], options)
            calls.append((item["call_id"], arguments))
            items.append({k: item[k] for k in ("type", "call_id", "name")} | {"arguments": arguments})
    return items, said, calls


def results(dialect, outputs):
    if dialect == "messages":
        blocks = [{"type": "tool_result", "tool_use_id": i, "content": out} for i, out in outputs]
        return [{"role": "user", "content": blocks}]
    if dialect == "responses":
        return [{"type": "function_call_output", "call_id": i, "output": out} for i, out in outputs]
    return [{"role": "tool", "tool_call_id": i, "content": out} for i, out in outputs]


ASK = {"chat": ask_chat, "messages": ask_messages, "responses": ask_responses}


def run(arguments):
    try:
        command = json.loads(arguments).get("command", "")
    except (ValueError, AttributeError):
        return "the arguments are not JSON"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dialect", default="chat")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--rewrite", action="store_true")
    parser.add_argument("--plain", action="store_true", help="offers no tools")
    parser.add_argument("--act", default="work")
    parser.add_argument("--model", default="policy")
    parser.add_argument("--title", action="store_true", help="asks for a title beside the task")
    parser.add_argument("--planner", help="a model that is asked for a plan before the work")
    parser.add_argument("prompt", nargs="?")
    options = parser.parse_args()
    prompt = options.prompt if options.prompt is not None else sys.stdin.read()
    if options.act == "crash":
        sys.exit("something broke")
    if options.act == "silent":
        return
    if options.act == "hang":
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        time.sleep(1000)
    if options.act == "fill":
        subprocess.run("head -c 20000M /dev/zero > big", shell=True, check=True)
    if options.act == "large-file":  # of holes: it costs no disk
        subprocess.run(["truncate", "-s", "4100000000", "big"], check=True)
        sys.exit(1)
    if options.act == "question":
        print(input("Shall I? "))
    if options.act == "patience":
        print("Continue? [y/N] ", end="", flush=True)
        time.sleep(1000)
    if options.act == "network":
        for host in ("93.184.216.34", "169.254.169.254", "127.0.0.1"):
            try:
                urllib.request.urlopen(f"http://{host}:80/", timeout=3)
                print(f"reached {host}")
            except OSError:
                pass
    history = [{"role": "user", "content": prompt}]
    if options.planner:
        plan = {"model": options.planner, "messages": [{"role": "user", "content": f"Plan: {prompt}"}]}
        message = json.loads(post("/v1/chat/completions", plan))["choices"][0]["message"]
        history[0]["content"] += f" Plan: {message['content']}"
    if options.title:
        title = [{"role": "user", "content": f"A title for: {prompt}"}]
        post("/v1/chat/completions", {"model": options.model, "messages": title})
    while True:
        try:
            answer, said, calls = ASK[options.dialect](history, options)
        except urllib.error.HTTPError as error:
            sys.exit(f"HTTP {error.code}: {error.read().decode()}")
        history += answer
        if not calls:
            break
        history += results(options.dialect, [(call_id, run(arguments)) for call_id, arguments in calls])
    if options.act == "daemon":
        late = "sleep 1; echo 42 > answer.txt"
        subprocess.Popen(["sh", "-c", late], start_new_session=True, stdin=subprocess.DEVNULL)
    if options.act == "late-crash":
        sys.exit("something broke")
    if options.act == "late-hang":
        time.sleep(1000)
    if options.act == "reward":
        post("/reward", {"reward": 0.25})
    print(said)


main()
