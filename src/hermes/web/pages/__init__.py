"""The pages, one file each: read a request, ask the store or a run's folder, fill a template."""
