"""Policies: which weights answer by the name `policy`, where they come from, and when new ones replace them.

`registry` is the record, `sequential` the test that decides, `improve` the loop from ratings to a promotion.
"""
