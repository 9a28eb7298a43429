"""lm-eval: logprobs of given continuations, and answers by both of its clients. Runs where no Hermes is."""

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
data = (
    f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {home / 'rows.jsonl'}\ntest_split: test\n"
    "doc_to_text: '{{question}}'\n"
)
(home / "choices.yaml").write_text(
    f"task: choices\n{data}output_type: multiple_choice\ndoc_to_choice: '{{{{choices}}}}'\n"
    "doc_to_target: answer\nmetric_list:\n  - metric: acc\n"
)
(home / "words.yaml").write_text(
    f"task: words\n{data}output_type: generate_until\ndoc_to_target: '{{{{choices[0]}}}}'\n"
    "generation_kwargs:\n  until: ['.']\n  max_gen_toks: 8\n  do_sample: false\n"
    "metric_list:\n  - metric: bypass\n"
)
local = f"model={name},tokenizer={tokenizer},tokenizer_backend=huggingface,num_concurrent=2,max_retries=1"


def evaluate(client, path, task, **options):
    results = lm_eval.simple_evaluate(
        model=client,
        model_args=f"{local},base_url={url}/{path}",
        tasks=[task],
        task_manager=TaskManager(include_path=str(home), include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
        **options,
    )
    assert results is not None
    return results["samples"][task]


for sample in evaluate("local-completions", "completions", "choices"):
    logprobs = [float(pair[0]) for pair in sample["filtered_resps"]]
    print("LOGPROBS", json.dumps({"question": sample["doc"]["question"], "logprobs": logprobs}))
for sample in evaluate("local-completions", "completions", "words"):
    print("COMPLETED", json.dumps(sample["filtered_resps"][0]))
chat = "local-chat-completions"
for sample in evaluate(chat, "chat/completions", "words", apply_chat_template=True):
    print("CHATTED", json.dumps(sample["filtered_resps"][0]))
print("OK", importlib.metadata.version("lm-eval"))
