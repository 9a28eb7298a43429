"""Environments of `verifiers`, in an interpreter of their own.

`verifiers` needs an older `openai` than Hermes, so the two cannot share an interpreter. `worker.py` runs in
the interpreter that has `verifiers`: it loads an environment and runs rollouts as requests on its standard
input ask. Its model calls come to `gateway`, in this process, which samples them and keeps the exact ids.
`env.VerifiersEnv` makes groups of both, so that serve, process and evaluate work as for our own environments.
"""
