"""What happened to a run besides its steps: starts of its trainer, and alerts."""
