"""The web app: read, rate and watch what Hermes records, in a browser. Server-rendered; JavaScript only makes
it quick."""
