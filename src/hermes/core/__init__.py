"""The nouns of Hermes: pure, immutable, standard library only.

Beside them, and not imported here: `files`, `drafts`, `filelock` and `appendlog`, which every package uses
to write to disk.
"""

from hermes.core.hashing import canonical_json, content_hash, ordered_json
from hermes.core.ids import new_id
from hermes.core.json import JSON, JSONObject, parse_object
from hermes.core.message import Message, Role, ToolCall
from hermes.core.model_call import ModelCall, Sampling, TokenTrace, explicit_sampling
from hermes.core.outcome import Boundary, Outcome, StopReason
from hermes.core.rating import RaterSource, Rating, RatingKind
from hermes.core.step import Step, StepKind, ToolErrorKind, ToolResult
from hermes.core.trajectory import Fact, FactAuthor, Header, Relation, Reward, Source, Trajectory
from hermes.core.usage import Usage

__all__ = [
    "JSON",
    "Boundary",
    "Fact",
    "FactAuthor",
    "Header",
    "JSONObject",
    "Message",
    "ModelCall",
    "Outcome",
    "RaterSource",
    "Rating",
    "RatingKind",
    "Relation",
    "Reward",
    "Role",
    "Sampling",
    "Source",
    "Step",
    "StepKind",
    "StopReason",
    "TokenTrace",
    "ToolCall",
    "ToolErrorKind",
    "ToolResult",
    "Trajectory",
    "Usage",
    "canonical_json",
    "content_hash",
    "explicit_sampling",
    "new_id",
    "ordered_json",
    "parse_object",
]
