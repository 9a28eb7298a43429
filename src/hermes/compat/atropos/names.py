"""The names of atroposlib and where each is defined in Hermes, module by module, older names included.

The same for hermes-agent's package `environments`, which its agent environments import. A value is
`module:attribute`, or `module:` where the attribute has the same name.
"""

from __future__ import annotations

ROOT = "atroposlib"
AGENT_ROOT = "environments"

_TYPES = "hermes.envs.types:"
_CONFIG = "hermes.envs.config:"
_SERVER_CONFIG = "hermes.envs.servers.config:"
_MANAGER = "hermes.envs.servers.manager:"
_MANAGED = "hermes.compat.atropos.servers.managed:"
_ENGINES = "hermes.envs.servers.engines:"
_SERVER = "hermes.envs.servers.base:"
_REWARDS = "hermes.compat.atropos.reward_fns"
_HERE = "hermes.compat.atropos"


def _same(module: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, module)


_SERVER_NAMES = {
    **_same(_SERVER_CONFIG, "APIServerConfig", "ServerBaseline", "ReasoningConfig"),
    **_same(_SERVER, "APIServer"),
}

_BASE = {
    "BaseEnv": "hermes.envs.base:",
    "BaseLanguageEnv": "hermes.envs.base:BaseEnv",
    "OpenaiConfig": f"{_SERVER_CONFIG}APIServerConfig",
    **_same(_CONFIG, "BaseEnvConfig", "EvalHandlingEnum"),
    **_same(_TYPES, "ScoredDataGroup", "ScoredDataItem", "Item", "Message"),
    **_SERVER_NAMES,
    **_same(_MANAGER, "ServerManager"),
    **_same(_SERVER_CONFIG, "ServerManagerConfig"),
    "generate_html": "hermes.envs.modes.process:",
}

_CONFIGS = {**_same(_SERVER_CONFIG, "APIServerConfig"), **_same(_CONFIG, "BaseEnvConfig")}

MODULES: dict[str, dict[str, str]] = {
    "": {},
    "type_definitions": _same(
        _TYPES, "Item", "number", "Content", "Message", "Observation", "GameStep", "GameHistory"
    ),
    "envs": {"BaseLanguageEnv": "hermes.envs.base:BaseEnv", "BaseEnv": "hermes.envs.base:"},
    "envs.base": _BASE,
    "envs.eval": {
        **_same("hermes.compat.atropos.eval_base:", "EvalBase", "eval_runner", "pass_at_k"),
        "evaluate_log": "hermes.envs.modes.evaluate:",
    },
    "envs.teacher_distillation_env": _same(
        "hermes.compat.atropos.teacher:", "TeacherDistillationEnv", "TeacherDistillationConfig"
    ),
    "envs.server_handling": {},
    "envs.server_handling.server_baseline": {
        **_SERVER_NAMES,
        "AsyncSemWithAdaptiveWeight": "hermes.envs.servers.base:",
    },
    "envs.server_handling.server_manager": {
        **_SERVER_NAMES,
        **_same(_MANAGER, "ServerManager"),
        **_same(_SERVER_CONFIG, "ServerManagerConfig"),
    },
    "envs.server_handling.openai_server": {
        **_SERVER_NAMES,
        "OpenAIServer": "hermes.envs.servers.engines:",
    },
    "envs.server_handling.managed_server": {
        **_same(_MANAGED, "ManagedServer", "ManagedServerAdapter"),
        "SequenceNode": "hermes.compat.atropos.servers.managed:",
        "DummyManagedServer": "hermes.compat.atropos.servers.managed:",
    },
    "envs.server_handling.vllm_server": {**_SERVER_NAMES, "VLLMServer": _ENGINES},
    "envs.server_handling.sglang_server": {**_SERVER_NAMES, "SGLangServer": _ENGINES},
    "envs.reward_fns": _same(f"{_REWARDS}:", "RewardFunction", "registry", "CombinedReward"),
    "envs.reward_fns.registry": _same(f"{_REWARDS}:", "registry", "RewardRegistry"),
    "envs.reward_fns.reward_function": _same(f"{_REWARDS}:", "RewardFunction"),
    "envs.reward_fns.combined_reward": _same(f"{_REWARDS}:", "CombinedReward"),
    "envs.reward_fns.accuracy_reward": _same(f"{_REWARDS}:", "AccuracyReward"),
    "envs.reward_fns.r1_reward": _same(
        f"{_REWARDS}:", "R1Reward", "AccuracyXReward", "FormatReasoningReward"
    ),
    "envs.reward_fns.format_reward": _same(f"{_REWARDS}:", "FormatReward"),
    "utils": {},
    "utils.tokenize_for_trainer": _same(
        "hermes.envs.tokenise:", "tokenize_for_trainer", "tokenize_for_trainer_dpo"
    ),
    "utils.tool_call_parser": _same(f"{_HERE}.helpers:", "parse_tool_call", "extract_tool_call"),
    "utils.message_history_utils": _same(
        f"{_HERE}.helpers:", "ensure_trajectory_token_limit", "truncate_thinking"
    ),
    "utils.best_of_n_selection": _same(f"{_HERE}.helpers:", "select_best_index"),
    "utils.io": _same(f"{_HERE}.helpers:", "parse_http_response"),
    "utils.metrics": {"get_std_min_max_avg": "hermes.envs.modes.metrics:summarize"},
    "utils.parse_args_and_command": _same(f"{_HERE}.helpers:", "parse_args_and_command"),
    "frontend": {},
    "frontend.jsonl2html": {"generate_html": "hermes.envs.modes.process:"},
    "api": _CONFIGS,
    "api.config": _CONFIGS,
}

AGENT_MODULES: dict[str, dict[str, str]] = {
    "": {},
    "hermes_base_env": {
        "HermesAgentBaseEnv": "hermes.compat.agent_loop:OriginalAgentEnv",
        "HermesAgentEnvConfig": "hermes.envs.agent.config:",
        "ToolContext": "hermes.compat.agent_loop:TaskToolContext",
        "AgentResult": "hermes.envs.agent.result:",
        "HermesAgentLoop": "hermes.compat.agent_loop:",
    },
    "agent_loop": {
        "HermesAgentLoop": "hermes.compat.agent_loop:",
        **_same("hermes.envs.agent.result:", "AgentResult", "ToolError"),
    },
    "tool_context": {"ToolContext": "hermes.compat.agent_loop:TaskToolContext"},
    "tool_call_parsers": {
        **_same("hermes.models.parsers:", "get_parser", "ToolCallParser"),
        "list_parsers": "hermes.models.parsers:parser_names",
    },
}

TABLES = {ROOT: MODULES, AGENT_ROOT: AGENT_MODULES}
