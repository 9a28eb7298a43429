"""What the predecessor's rl tools answered."""

from __future__ import annotations

RETURNS: dict[str, set[str]] = {
    "rl_list_environments": {"environments", "count", "tips"},
    "rl_select_environment": {"message", "environment", "file_path"},
    "rl_get_current_config": {"environment", "configurable_fields", "locked_fields", "tip"},
    "rl_edit_config": {"message", "field", "value", "config"},
    "rl_start_training": {
        *("run_id", "status", "environment", "config", "wandb_project", "wandb_run_name", "config_path"),
        *("logs", "message"),
    },
    "rl_check_status": {
        *("run_id", "status", "environment", "running_time_minutes", "processes", "wandb_project"),
        *("wandb_run_name", "logs"),
    },
    "rl_stop_training": {"message", "run_id", "status"},
    "rl_get_results": {
        *("run_id", "status", "environment", "wandb_project", "wandb_run_name", "final_metrics", "history"),
    },
    "rl_list_runs": {"runs", "count"},
    "rl_test_inference": {"environment", "environment_file", "test_config", "models_tested", "summary"},
}


TESTED = {
    *("model", "name", "scale", "wandb_run", "output_file", "steps", "steps_tested", "total_completions"),
    *("correct_completions", "accuracy", "steps_with_correct", "step_success_rate", "log_file"),
}


SUMMARY = {
    *("steps_requested", "models_tested", "models_succeeded", "best_model", "avg_accuracy"),
    *("environment_working", "output_directory"),
}
