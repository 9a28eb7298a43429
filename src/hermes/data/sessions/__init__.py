"""Sessions that coding agents left on disk: a reader for each client, and one way into the store."""
