"""The events of a run besides its steps: starts of its trainer, and alerts."""
