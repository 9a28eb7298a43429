"""inspect-ai: an evaluation of two samples with logprobs. Runs where no Hermes is."""

import importlib.metadata
import os
import sys

url, name, folder = sys.argv[1:4]
os.environ["OPENAI_API_KEY"] = "none"
os.environ["OPENAI_BASE_URL"] = url

from inspect_ai import Task  # noqa: E402
from inspect_ai import eval as evaluate  # noqa: E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.model import GenerateConfig, get_model  # noqa: E402
from inspect_ai.scorer import includes  # noqa: E402
from inspect_ai.solver import generate  # noqa: E402

config = GenerateConfig(max_tokens=16, logprobs=True, top_logprobs=2, seed=1, temperature=0.7)
model = get_model(f"openai/{name}", base_url=url, config=config, responses_api=False)
task = Task(
    dataset=[Sample("Say yes.", target="yes"), Sample("Say no.", target="no")],
    solver=generate(),
    scorer=includes(),
)
(log,) = evaluate(task, model=model, log_dir=folder, display="none", max_connections=2)
assert log.status == "success", log.error
assert log.samples and len(log.samples) == 2
for sample in log.samples:
    assert sample.error is None, sample.error
    logprobs = sample.output.choices[0].logprobs
    assert logprobs is not None and logprobs.content, "no logprobs came back"
    assert len(logprobs.content[0].top_logprobs or ()) == 2
print("OK", importlib.metadata.version("inspect-ai"))
