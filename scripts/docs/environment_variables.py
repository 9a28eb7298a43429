"""The environment variables that Hermes reads, beside those of its settings: the variables page of the docs.

The tests compare this table with the code: a variable that the code reads and the table does not have fails
them, and so does one that only the table has.
"""

from __future__ import annotations

from typing import NamedTuple


class Variable(NamedTuple):
    name: str
    meaning: str


HOME = (
    Variable("HERMES_HOME", "The folder of settings, keys, store, models and runs. Default: `~/.hermes`."),
    Variable("EDITOR", "The editor of `hermes config edit`; `VISUAL` comes before it."),
    Variable("VISUAL", "See `EDITOR`."),
    Variable("NO_COLOR", "Set to anything: no colours."),
    Variable("TERM", "`dumb`: no colours and no live progress."),
)
KEYS = (
    Variable("OPENROUTER_API_KEY", "The key of the provider `openrouter`."),
    Variable("OPENAI_API_KEY", "The key of the provider `openai`."),
    Variable("OPENAI_BASE_URL", "The address of the provider `openai`."),
    Variable("OPENAI_API_BASE", "The same, for the agents of `hermes record`."),
    Variable("ANTHROPIC_BASE_URL", "The address of Anthropic's API, for the agents of `hermes record`."),
    Variable("BRAVE_API_KEY", "Web search by Brave."),
    Variable("TAVILY_API_KEY", "Web search by Tavily."),
    Variable("HF_TOKEN", "The Hugging Face hub: private and gated repositories, and pushes."),
    Variable("HF_ENDPOINT", "The address of a mirror of the hub."),
    Variable("HF_HUB_OFFLINE", "`1`: nothing is downloaded from the hub; the cache is used."),
    Variable("WANDB_API_KEY", "Weights & Biases. With it, trainers and environments log there."),
    Variable("WANDB_MODE", "`offline` or `disabled`, as the package wandb defines them."),
)
TRAINING = (
    Variable("TINKER_API_KEY", "The key of the Tinker service that trains."),
    Variable("TINKER_BASE_URL", "The address of that service, where no `--service` names one."),
    Variable(
        "TINKER_TELEMETRY", "Hermes sets it to `0`, unless you set it: the SDK then sends no telemetry."
    ),
    Variable("RL_API_URL", "The trajectory API that `hermes env serve` and `hermes train` use by default."),
    Variable("HERMES_FLEET_KEY", "The API key of the servers of `hermes engine fleet`."),
    Variable("HERMES_TEACHER_KEY", "The key of the teacher's server, for `--teacher-url`."),
    Variable("HERMES_EVAL_STEP", "Set for the command of `--eval-command`: the step."),
    Variable("HERMES_EVAL_SAMPLER", "Set for that command: the `tinker://` path of the weights."),
    Variable("HERMES_EVAL_RUN", "Set for that command: the name of the run."),
    Variable("HERMES_UNSENT_DIR", "Where an environment keeps groups that the API did not accept."),
    Variable("LLAMA_CPP", "The folder of llama.cpp, whose converter writes GGUF files."),
)
SERVERS = (
    Variable("HERMES_API_TOKEN", "The token of the trajectory API; required on any address but loopback."),
    Variable("HERMES_ENGINE_TOKEN", "The same for the engine."),
    Variable("HERMES_RECORD_TOKEN", "The same for `hermes record serve`."),
    Variable("HERMES_RECORD_URL", "A gateway that runs already, which `hermes record -- COMMAND` uses."),
    Variable("HERMES_WEB_TOKEN", "The same for the web app."),
    Variable("HERMES_WEB_RATER_TOKEN", "A second token of `hermes web`, which reads and rates only."),
    Variable("HERMES_REWARD_TOKEN", "The same for a served reward model."),
)
CLUSTERS = (
    Variable("CUDA_VISIBLE_DEVICES", "The GPUs that an engine may use, as CUDA defines it."),
    Variable("SLURM_JOB_NODELIST", "Under Slurm: the nodes on which an environment looks for model servers."),
    Variable("NUM_TRAINING_NODES", "Under Slurm: how many nodes train and serve no model. Default: 1."),
    Variable("INFER_TP", "Under Slurm: GPUs per model server. Default: 1."),
    Variable("PLAYWRIGHT_BROWSERS_PATH", "Where `hermes doctor` looks for Chromium."),
)
SECTIONS = {
    "Home and terminal": HOME,
    "Keys and services": KEYS,
    "Training": TRAINING,
    "Servers": SERVERS,
    "Clusters and machines": CLUSTERS,
}
"""By heading of the page."""
