"""Files on disk: private and atomic writes, drafts, locks, append-only logs. Every package may use it."""
