"""Token-level rows for RL: the ids as sampled, never decoded and encoded again.

A trajectory becomes one sequence as long as each call's prompt begins with everything before it; where it
does not (a template rewrote history), a new sequence starts, so no row holds a context that the model never
saw. `mask` is 1 exactly on sampled ids; `logprobs` are the sampler's there and 0 elsewhere. A trajectory of
which any call's ids are missing or withheld is left out: a sequence with holes would train on nonsense.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hermes.core import JSONObject, Step, StepKind, TokenTrace
from hermes.data.example import Example, UnfitError
from hermes.data.formats.base import Column, Format, ToolCallStyle


@dataclass
class _Sequence:
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    spans: list[JSONObject] = field(default_factory=list)

    def continues(self, trace: TokenTrace) -> bool:
        return list(trace.prompt_ids[: len(self.ids)]) == self.ids

    def append(self, step: Step, trace: TokenTrace) -> None:
        new_prompt = trace.prompt_ids[len(self.ids) :]
        self.ids += new_prompt
        self.logprobs += [0.0] * len(new_prompt)
        self.mask += [0] * len(new_prompt)
        start = len(self.ids)
        self.ids += trace.sampled_ids
        self.logprobs += trace.logprobs
        self.mask += [1] * len(trace.sampled_ids)
        self.spans.append(
            {
                "step": step.index,
                "start": start,
                "end": len(self.ids),
                "policy_version": trace.policy_version,
            }
        )


def write(example: Example, calls: ToolCallStyle) -> Iterator[JSONObject]:
    sequences: list[_Sequence] = []
    for step in example.trajectory.steps:
        if step.kind is not StepKind.MODEL or step.call is None:
            continue
        trace = step.call.tokens
        if trace is None:
            withheld = step.call.tokens_withheld is not None
            raise UnfitError("its token ids were withheld" if withheld else "its token ids were not recorded")
        if not sequences or not sequences[-1].continues(trace):
            sequences.append(_Sequence())
        sequences[-1].append(step, trace)
    if not sequences:
        raise UnfitError("the model never answered")
    header = example.trajectory.header
    for number, sequence in enumerate(sequences):
        yield {
            "id": header.id,
            "sequence": number,
            "sequences": len(sequences),
            "input_ids": sequence.ids,
            "logprobs": sequence.logprobs,
            "mask": sequence.mask,
            "spans": sequence.spans,
            "model": header.model,
            "run_id": header.run_id,
            "task_id": header.task_id,
            "sample_index": header.sample_index,
            "reward": example.reward,
        }


FORMAT = Format(
    name="tokens",
    version=1,
    summary="token-level RL rows: ids, logprobs, mask, policy version",
    columns=(
        Column("id", "string", "the trajectory's id in the store"),
        Column("sequence", "int64", "which of the trajectory's sequences, from 0"),
        Column("sequences", "int64", "how many it has"),
        Column("input_ids", "ints", "prompt and sampled ids"),
        Column("logprobs", "doubles", "the sampler's, 0 where nothing was sampled"),
        Column("mask", "ints", "1 on sampled ids"),
        Column("spans", "spans", "one for each model call: step, start, end, policy_version"),
        Column("model", "string", "provider/model that sampled"),
        Column("run_id", "string", "the run"),
        Column("task_id", "string", "the task; tries at one task are a group"),
        Column("sample_index", "int64", "which try"),
        Column("reward", "double", "the latest"),
    ),
    write=write,
    keeps=("every sampled id and its logprob (float32), every prompt id, which is which", "policy versions"),
    loses=("the text (ids spell it), and everything else",),
)
