"""Which policies have work, and how much is owed to each."""

from __future__ import annotations

from hermes.engine.lora.policy import Policy
from hermes.engine.sampling.request import SampleJob

_EXPECTED_TOKENS = 256
"""What a sample without a tight limit is taken to need."""


class PolicyLoad:
    def __init__(self) -> None:
        self._order: dict[Policy, int] = {}
        self._owed: dict[Policy, int] = {}
        self._dropped: set[Policy] = set()
        self._count = 0

    def add(self, job: SampleJob) -> None:
        self._count += 1
        self._order.setdefault(job.policy, self._count)
        self._owed[job.policy] = self._owed.get(job.policy, 0) + _cost(job)

    def settle(self, job: SampleJob) -> bool:
        """The job is over. Whether that was the last of a dropped policy."""
        self._owed[job.policy] -= _cost(job)
        if self._owed[job.policy]:
            return False
        del self._owed[job.policy]
        return job.policy in self._dropped and self._forget(job.policy)

    def drop(self, policy: Policy) -> bool:
        """No more jobs will come for it. Whether none is left either."""
        self._dropped.add(policy)
        return policy not in self._owed and self._forget(policy)

    def is_dropped(self, policy: Policy) -> bool:
        return policy in self._dropped

    def order(self, policy: Policy) -> int:
        """A number by which its sequences are kept together."""
        return self._order[policy]

    def alone(self, tokens: int) -> Policy | None:
        """The policy that all work is for, if about so many tokens or more are owed to it."""
        if len(self._owed) != 1:
            return None
        policy, owed = next(iter(self._owed.items()))
        return policy if owed >= tokens else None

    def _forget(self, policy: Policy) -> bool:
        self._dropped.discard(policy)
        self._order.pop(policy, None)
        return True


def _cost(job: SampleJob) -> int:
    """Tokens the job is likely to take; never 0."""
    return len(job.prompt) + job.request.num_samples * min(job.limit, _EXPECTED_TOKENS)
