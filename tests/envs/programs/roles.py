"""A LangGraph agent with two roles: a planner of one model, and a worker of another that has a shell.

roles.py PLANNER WORKER PROMPT
"""

import subprocess
import sys

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph


@tool
def shell(command: str) -> str:
    """Runs a command."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def main(planner_name: str, worker_name: str, prompt: str) -> None:
    planner = ChatOpenAI(model=planner_name)
    worker = ChatOpenAI(model=worker_name).bind_tools([shell])

    def plan(state: MessagesState) -> dict:
        answer = planner.invoke([SystemMessage("Plan the job."), *state["messages"]])
        return {"messages": [HumanMessage(f"Plan: {answer.content}")]}

    def work(state: MessagesState) -> dict:
        return {"messages": [worker.invoke(state["messages"])]}

    def act(state: MessagesState) -> dict:
        calls = state["messages"][-1].tool_calls
        return {
            "messages": [ToolMessage(shell.invoke(call["args"]), tool_call_id=call["id"]) for call in calls]
        }

    graph = StateGraph(MessagesState)
    for step in (plan, work, act):
        graph.add_node(step.__name__, step)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "work")
    graph.add_conditional_edges("work", lambda state: "act" if state["messages"][-1].tool_calls else END)
    graph.add_edge("act", "work")
    done = graph.compile().invoke({"messages": [HumanMessage(prompt)]})
    print(done["messages"][-1].content)


main(*sys.argv[1:])
