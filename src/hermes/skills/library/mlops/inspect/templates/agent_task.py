"""An Inspect task for an agent: a shell in a sandbox, scored by what lies in the sandbox afterwards.

Run it with: inspect eval agent_task.py --model openai-api/local/NAME
"""

from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import TaskState
from inspect_ai.tool import bash
from inspect_ai.util import sandbox


@scorer(metrics=[accuracy(), stderr()])
def file_content() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        result = await sandbox().exec(["cat", "answer.txt"])
        return Score(value="C" if result.stdout.strip() == target.text else "I", answer=result.stdout[:200])

    return score


@task
def write_file() -> Task:
    return Task(
        dataset=[Sample(input="Write the word done to answer.txt.", target="done")],
        solver=react(tools=[bash(timeout=60)]),
        scorer=file_content(),
        sandbox="docker",  # "local" runs the model's commands on this machine,
        message_limit=20,
        time_limit=300,
    )
