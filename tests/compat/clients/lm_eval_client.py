"""lm-eval: `local-completions` with the logprobs of given continuations. Runs where no Hermes is."""

import importlib.metadata
import json
import sys
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

url, name, tokenizer, folder = sys.argv[1:5]
rows = [
    {"question": "The sky is", "choices": [" blue", " loud"], "answer": 0},
    {"question": "Two and two are", "choices": [" four", " green"], "answer": 0},
]
home = Path(folder)
(home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
(home / "choices.yaml").write_text(
    "task: choices\ndataset_path: json\n"
    f"dataset_kwargs:\n  data_files:\n    test: {home / 'rows.jsonl'}\n"
    "test_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{question}}'\n"
    "doc_to_choice: '{{choices}}'\ndoc_to_target: answer\nmetric_list:\n  - metric: acc\n"
)
arguments = f"model={name},base_url={url}/completions,tokenizer={tokenizer},tokenizer_backend=huggingface"
results = lm_eval.simple_evaluate(
    model="local-completions",
    model_args=f"{arguments},num_concurrent=1,max_retries=1,tokenized_requests=True",
    tasks=["choices"],
    task_manager=TaskManager(include_path=str(home), include_defaults=False),
    bootstrap_iters=0,
)
assert results is not None
samples = results["samples"]["choices"]
for sample in samples:
    logprobs = [pair[0] for pair in sample["filtered_resps"]]
    assert len(logprobs) == 2 and all(value < 0 for value in logprobs), logprobs
    print("LOGPROBS", json.dumps([float(value) for value in logprobs]))
print("OK", importlib.metadata.version("lm-eval"))
