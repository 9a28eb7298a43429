"""Papers: a LaTeX project from the record of runs, and the check that its numbers come from the record."""
