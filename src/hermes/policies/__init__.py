"""Policies: which weights answer by the name `policy`, where they come from, and when new ones replace them.

`sequential` is the test that decides, `improve` the loop from ratings to a promotion. The record of policies
is `training.policy_registry`, because trainers start from them.
"""
