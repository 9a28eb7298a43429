"""The metrics of a run as curves of bounded size, kept beside `metrics.jsonl` and continued as it grows."""
