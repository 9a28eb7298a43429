"""The policies of a home: an append-only log of candidates and promotions.

Every candidate keeps where it comes from: the policy it started from, the method, and the ids of the ratings
it learned from. The current policy is the newest promotion's; before the first it is the base model. A
rollback is a promotion of an earlier policy. Only a person removes a policy: its record stays in the log,
marked as deleted, and its files go.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hermes.core import JSONObject, new_id
from hermes.core.clock import now_ms
from hermes.core.names import did_you_mean, is_policy_name, nearest
from hermes.disk.appendlog import AppendLog, read_lines
from hermes.disk.files import ensure_dir
from hermes.errors import HermesError, UsageError

BASE_ID = "base"
_LOG = "log.jsonl"
_ROLLED_BACK = "rolled back from "
"""How the reason of a rollback begins."""
NAME = "policy"
"""The model name that stands for the current policy."""


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """One policy: a model, an adapter on it or none, and texts around it or none."""

    id: str
    base_model: str
    weights: str | None
    """tinker://… to train from; None: the base model itself."""
    sampler: str | None
    """tinker://… to sample from."""
    run_id: str | None = None
    """The training run that made it."""
    parent: str = BASE_ID
    """The policy that it started from and was compared with."""
    method: str = ""
    """dpo, kto, rlhf; 'by hand' for weights that somebody named."""
    ratings: tuple[str, ...] = ()
    """Ids of the rating events that it learned from."""
    ratings_until_ms: int = 0
    """Time of the newest rating that was considered."""
    decision: str = ""
    """The result of the comparison with its parent: better, worse, undecided."""
    report: str | None = None
    """Folder of the report."""
    facts: JSONObject = field(default_factory=dict)
    """Figures of the comparison."""
    created_at_ms: int = 0
    name: str = ""
    """For people: the run and the step, as in `quickstart-1118@step-7`; empty in older records."""
    texts: JSONObject = field(default_factory=dict)
    """Name → text (`core/texts.py`), such as the system prompt."""

    @property
    def label(self) -> str:
        return self.name or self.id


@dataclass(frozen=True, slots=True)
class Promotion:
    policy_id: str
    at_ms: int
    reason: str


class PolicyRegistry:
    """Reads the log anew each time: several processes share it."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "policies"

    def policies(self) -> list[PolicyRecord]:
        """Oldest first."""
        events = self._events()
        deleted = {event["policy_id"] for event in events if event["event"] == "deletion"}
        records = [_record(event) for event in events if event["event"] == "candidate"]
        return [record for record in records if record.id not in deleted]

    def promotions(self) -> list[Promotion]:
        """Oldest first."""
        return [
            Promotion(event["policy_id"], event["at_ms"], event["reason"])
            for event in self._events()
            if event["event"] == "promotion"
        ]

    def current(self, base_model: str = "hermes/smollm2") -> PolicyRecord:
        """The promoted policy; the base model before the first promotion."""
        promotions = self.promotions()
        if not promotions or promotions[-1].policy_id == BASE_ID:
            return PolicyRecord(BASE_ID, base_model, None, None)
        return self.find(promotions[-1].policy_id)

    def find(self, reference: str) -> PolicyRecord:
        """By its name or id, a unique beginning of either, the end of its id, or 'current'."""
        if reference in ("current", NAME):
            return self.current()
        if reference == BASE_ID:
            return PolicyRecord(BASE_ID, self.current().base_model, None, None)
        part, policies = reference.upper(), self.policies()
        matching = [record for record in policies if reference and record.name == reference][-1:]
        matching = matching or [
            record
            for record in policies
            if part
            and (record.id.startswith(part) or record.id.endswith(part) or record.name.startswith(reference))
        ]
        if not matching:
            hint = did_you_mean(nearest(reference, (record.label for record in policies)))
            raise UsageError(f"'{reference}' matches no policy", hint or "hermes policy list lists them")
        if len(matching) > 1:
            labels = ", ".join(record.label for record in matching)
            raise UsageError(
                f"'{reference}' matches {len(matching)} policies: {labels}", "write more of the name"
            )
        return matching[0]

    def attempts(self, policy_id: str) -> int:
        """Candidates that were compared with this policy."""
        return sum(record.parent == policy_id and bool(record.decision) for record in self.policies())

    def add(self, record: PolicyRecord) -> None:
        self._append({"event": "candidate", **asdict(record)})

    def promote(self, policy_id: str, reason: str) -> PolicyRecord:
        record = self.find(policy_id)
        self._append({"event": "promotion", "policy_id": record.id, "at_ms": now_ms(), "reason": reason})
        return record

    def delete(self, policy_id: str) -> None:
        """Removes a policy and its files in the home; UsageError if it is the current one or the base."""
        record = self.find(policy_id)
        if record.id in (BASE_ID, self.current().id):
            raise UsageError(
                f"{record.id} answers as the current policy", "promote another one first, or roll back"
            )
        self._append({"event": "deletion", "policy_id": record.id, "at_ms": now_ms()})
        shutil.rmtree(self.folder / record.id, ignore_errors=True)

    def rollback(self) -> PolicyRecord:
        """The policy that was current before the current one becomes current again."""
        return self.promote(self.before_current().id, f"{_ROLLED_BACK}{self.current().id}")

    def before_current(self) -> PolicyRecord:
        """Where a rollback goes; UsageError if nothing was promoted that is not rolled back already."""
        history = [BASE_ID]
        ids = {BASE_ID, *(record.id for record in self.policies())}
        for promotion in self.promotions():
            if promotion.policy_id not in ids:
                continue  # it was deleted
            if promotion.reason.startswith(_ROLLED_BACK) and history[-2:-1] == [promotion.policy_id]:
                history.pop()
            elif promotion.policy_id != history[-1]:
                history.append(promotion.policy_id)
        if len(history) == 1:
            raise UsageError("no policy was promoted yet; the base model is in use", "hermes improve")
        return self.find(history[-2])

    def _events(self) -> list[JSONObject]:
        path = self.folder / _LOG
        if not path.exists():
            return []
        events: list[JSONObject] = []
        for number, line in enumerate(read_lines(path), 1):
            try:
                events.append(json.loads(line))
            except ValueError as error:
                raise HermesError(f"{path}:{number} is not JSON: {error}", "remove that line") from error
        return events

    def _append(self, event: JSONObject) -> None:
        ensure_dir(self.folder)
        try:
            with AppendLog(self.folder / _LOG) as log:
                log.append([json.dumps(event)])
        except OSError as error:
            raise HermesError(f"{self.folder / _LOG} cannot be written: {error}", "free the disk") from error


def new_policy_id() -> str:
    return new_id()


def names_policy(model: str | None) -> bool:
    """`policy`, `policy:NAME` for a certain one, or the name of a policy itself."""
    return model is not None and (model == NAME or model.startswith(f"{NAME}:") or is_policy_name(model))


def named_policy(home: Path, model: str | None) -> PolicyRecord | None:
    """The policy of a model name; None for any other name. UsageError if there is no such policy."""
    if not names_policy(model):
        return None
    assert model is not None
    return PolicyRegistry(home).find(model.removeprefix(f"{NAME}:"))


def _record(event: JSONObject) -> PolicyRecord:
    fields = {name: value for name, value in event.items() if name != "event"}
    return PolicyRecord(**{**fields, "ratings": tuple(fields["ratings"])})
