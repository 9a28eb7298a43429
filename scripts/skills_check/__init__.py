"""The check of skills: what their blocks name exists in the packages at the pinned versions."""
