"""Which policies have unfinished jobs, and about how many tokens of work are outstanding for each."""

from __future__ import annotations

from hermes.engine.lora.policy import Policy
from hermes.engine.sampling.request import SampleJob

_EXPECTED_TOKENS = 256
"""Assumed length of a sample, unless its limit is lower."""


class PolicyLoad:
    def __init__(self) -> None:
        self._order: dict[Policy, int] = {}
        self._outstanding_tokens: dict[Policy, int] = {}
        self._dropped: set[Policy] = set()
        self._count = 0

    def add(self, job: SampleJob) -> None:
        self._count += 1
        self._order.setdefault(job.policy, self._count)
        self._outstanding_tokens[job.policy] = self._outstanding_tokens.get(job.policy, 0) + _cost(job)

    def remove(self, job: SampleJob) -> bool:
        """Subtracts a finished job. True if it was the last one of a dropped policy."""
        self._outstanding_tokens[job.policy] -= _cost(job)
        if self._outstanding_tokens[job.policy]:
            return False
        del self._outstanding_tokens[job.policy]
        return job.policy in self._dropped and self._remove_policy(job.policy)

    def drop(self, policy: Policy) -> bool:
        """Marks that no more jobs of this policy will be added. True if none is outstanding."""
        self._dropped.add(policy)
        return policy not in self._outstanding_tokens and self._remove_policy(policy)

    def is_dropped(self, policy: Policy) -> bool:
        return policy in self._dropped

    def order(self, policy: Policy) -> int:
        """A number that sorts the sequences of one policy together."""
        return self._order[policy]

    def sole_policy(self, min_tokens: int) -> Policy | None:
        """The only policy with unfinished jobs, if about `min_tokens` or more are outstanding for it."""
        if len(self._outstanding_tokens) != 1:
            return None
        policy, tokens = next(iter(self._outstanding_tokens.items()))
        return policy if tokens >= min_tokens else None

    def _remove_policy(self, policy: Policy) -> bool:
        self._dropped.discard(policy)
        self._order.pop(policy, None)
        return True


def _cost(job: SampleJob) -> int:
    """About how many tokens the job takes; never 0."""
    return len(job.prompt) + job.request.num_samples * min(job.limit, _EXPECTED_TOKENS)
