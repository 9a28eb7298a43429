"""Training runs as the dashboard shows them, read from their folders and the store: no process is asked."""
