"""`hermes skills`: the library and the user's skills."""
