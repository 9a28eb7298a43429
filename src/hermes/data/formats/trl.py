"""The dataset types of TRL: language modelling, preference, unpaired preference and stepwise supervision.

Rows hold what a trainer reads and the ids that lead back, no more. Arguments of calls are objects, as chat
templates expect them; with text calls (`--calls text`) everything is in `content`, for templates without
tools. A completion is the rest of one turn: the assistant's messages and the results they got, up to the next
user message; of a rated step it is that step's message alone.

OpenAI's preference rows (its hosted DPO, also Together and Fireworks): one assistant message on each side.

A pair whose better or worse turn is more than one message (it called tools) is left out: the service has no
form for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hermes.core import JSONObject, Message, Rating, Role, StepKind
from hermes.core.rating import STEPWISE_KINDS
from hermes.data.example import Example, UnfitError
from hermes.data.formats.base import Column, Format, ToolCallStyle, Unit
from hermes.data.formats.messages import TOOLS, read, strict_message, strict_tools
from hermes.data.formats.turns import as_text, for_template, template_messages, to_tools
from hermes.data.preference.pairs import PreferencePair
from hermes.data.preference.verdicts import conversation_steps, rated_spans
from hermes.models.parsers import get_parser
from hermes.models.render.prompting import assistant_text, tool_response_text

_ID = Column("id", "string", "the trajectory's id in the store")
_PROMPT = Column("prompt", "template_messages", "the conversation up to where the completion starts")
_LOSES = ("spacing and order of argument text", "sampling, usage, token ids, timing, raw replies, outcome")


def write_sft(example: Example, calls: ToolCallStyle) -> Iterator[JSONObject]:
    if not any(message.role is Role.ASSISTANT for message in example.messages):
        raise UnfitError("the model never answered")
    for part in example.as_seen():
        messages, tools = for_template(part, calls)
        yield {"id": example.id, "messages": messages, "tools": tools}


def write_prompt_completion(example: Example, calls: ToolCallStyle) -> Iterator[JSONObject]:
    """The part of a row that is trained begins with the first answer that is the model's own."""
    for part in example.as_seen():
        steps = conversation_steps(part)
        start = next((index for index, step in enumerate(steps) if step.kind is StepKind.MODEL), None)
        if not start:
            raise UnfitError("the model never answered" if start is None else "nothing precedes its answer")
        prompt, (completion,), tools = _sides(
            part.messages[:start], (part.messages[start:],), part.tools, calls
        )
        yield {"id": example.id, "prompt": prompt, "completion": completion, "tools": tools}


def write_preference(pair: PreferencePair, calls: ToolCallStyle) -> Iterator[JSONObject]:
    if pair.chosen_unseen or pair.rejected_unseen:
        raise UnfitError(
            "a later call of its turn was not shown the thinking of an earlier one; --thinking all takes it"
        )
    yield preference_row(pair, calls)


def preference_row(pair: PreferencePair, calls: ToolCallStyle) -> JSONObject:
    prompt, (chosen, rejected), tools = _sides(pair.prompt, (pair.chosen, pair.rejected), pair.tools, calls)
    return {
        "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        "tools": tools,
        "chosen_id": pair.chosen_id,
        "rejected_id": pair.rejected_id,
        "divergence_step": pair.divergence_step,
        "origin": pair.origin.value,
        "margin": pair.margin,
    }


def write_unpaired(example: Example, calls: ToolCallStyle) -> Iterator[JSONObject]:
    """Each rated span with its verdict; a verdict on the whole labels its last turn.

    A span is several rows of the same verdict where a later call was not shown what an earlier one thought.
    """
    spans = [span for span in rated_spans(example) if span.desirable is not None]
    if not spans:
        raise UnfitError("no rating says good or bad" if example.ratings else "not rated")
    for span in spans:
        for prompt, start, end in example.seen_parts(span.start, span.stop):
            completion = example.messages[start:end]
            while end < span.stop and completion[-1].role is Role.TOOL:
                completion = completion[:-1]  # results that only the next row's answer follows
            verdict = (span.desirable, span.score)
            yield unpaired_row(example.id, prompt, completion, *verdict, example.tools, calls)


def unpaired_row(
    trajectory_id: str,
    prompt: Sequence[Message],
    completion: Sequence[Message],
    label: bool | None,
    score: float,
    tools: Sequence[JSONObject],
    calls: ToolCallStyle,
) -> JSONObject:
    """`score`: 1 to 5."""
    shaped_prompt, (shaped,), schemas = _sides(prompt, (completion,), tools, calls)
    return {
        "id": trajectory_id,
        "prompt": shaped_prompt,
        "completion": shaped,
        "label": label,
        "rating": score,
        "tools": schemas,
    }


def write_stepwise(example: Example, calls: ToolCallStyle) -> Iterator[JSONObject]:
    """Up to the first step without a verdict: later ones are unknown, not bad."""
    verdicts = {
        span.start: span.desirable
        for span in rated_spans(replace(example, ratings=_of_steps(example)))
        if span.desirable is not None
    }
    steps = conversation_steps(example)
    first = next((i for i, step in enumerate(steps) if step.kind is StepKind.MODEL), len(steps))
    completions: list[str] = []
    labels: list[bool] = []
    for position, step in enumerate(steps[first:], first):
        if step.message.role is Role.TOOL and completions:
            completions[-1] += "\n" + _plain(step.message)
        elif step.kind is not StepKind.MODEL or (label := verdicts.get(position)) is None:
            break
        else:
            completions.append(_plain(step.message))
            labels.append(label)
    if not labels:
        raise UnfitError("its first step is not rated")
    opening = as_text([step.message for step in steps[:first]], example.tools)
    prompt = "\n\n".join(message.content for message in opening)
    yield {"id": example.id, "prompt": prompt, "completions": completions, "labels": labels}


def _of_steps(example: Example) -> tuple[Rating, ...]:
    return tuple(rating for rating in example.ratings if rating.kind in STEPWISE_KINDS)


def _sides(
    prompt: Sequence[Message],
    completions: Sequence[Sequence[Message]],
    tools: Sequence[JSONObject],
    calls: ToolCallStyle,
) -> tuple[list[JSONObject], list[list[JSONObject]], list[JSONObject] | None]:
    """The prompt once and each completion after it, in the wanted form."""
    if calls is ToolCallStyle.STRUCTURED:
        shaped = [template_messages(completion) for completion in completions]
        return template_messages(prompt), shaped, to_tools(tools) or None
    start = as_text(prompt, tools)
    return template_messages(start), [template_messages(as_text(c, ())) for c in completions], None


def _plain(message: Message) -> str:
    if message.role is Role.TOOL:
        return tool_response_text(message.tool_call_id or "", message.name or "", message.content)
    return assistant_text(message, get_parser("hermes"))


SFT = Format(
    name="trl-sft",
    version=1,
    summary="TRL SFTTrainer (also Unsloth and LLaMA-Factory): messages and tools",
    columns=(_ID, Column("messages", "template_messages", "the turns; call arguments are objects"), TOOLS),
    write=write_sft,
    read=read,
    keeps=("role, content, thinking, order", "calls: id, name, the value of their arguments", "tool schemas"),
    loses=_LOSES,
)
PROMPT_COMPLETION = Format(
    name="trl-prompt-completion",
    version=1,
    summary="TRL SFTTrainer: prompt and completion, which alone has the loss",
    columns=(_ID, _PROMPT, Column("completion", "template_messages", "what the model learns"), TOOLS),
    write=write_prompt_completion,
    keeps=("role, content, thinking, order", "calls: id, name, the value of their arguments", "tool schemas"),
    loses=_LOSES,
)
PREFERENCE = Format(
    name="trl-preference",
    version=1,
    summary="TRL DPOTrainer and RewardTrainer: prompt, chosen, rejected",
    columns=(
        _PROMPT,
        Column("chosen", "template_messages", "the better turn"),
        Column("rejected", "template_messages", "the worse turn"),
        TOOLS,
        Column("chosen_id", "string", "trajectory of the better turn"),
        Column("rejected_id", "string", "trajectory of the worse turn"),
        Column("divergence_step", "int64", "index of the first message that differs"),
        Column("origin", "string", "what made the pair: rating, reward, choice or retry"),
        Column("margin", "double", "how much better, in the origin's own unit"),
    ),
    write=write_preference,
    unit=Unit.PAIR,
    keeps=("both turns and their exact shared prefix", "ids of both trajectories, where they part"),
    loses=("what either trajectory says after that turn", *_LOSES),
)
UNPAIRED = Format(
    name="trl-unpaired",
    version=2,
    summary="TRL KTOTrainer: prompt, completion, label",
    columns=(
        _ID,
        _PROMPT,
        Column("completion", "template_messages", "the turn or the step that was judged"),
        Column("label", "bool", "true for good (thumb up, 4 or 5), false for bad (thumb down, 1 or 2)"),
        Column("rating", "double", "the verdict from 1 to 5; a thumb is 5 or 1; of several raters the mean"),
        TOOLS,
    ),
    write=write_unpaired,
    keeps=("the judged turn or step and all before it", "the verdict and its sign"),
    loses=("what follows the judged one", "verdicts of 3", *_LOSES),
)
STEPWISE = Format(
    name="trl-stepwise",
    version=1,
    summary="stepwise supervision (process reward models): prompt, completions, labels",
    columns=(
        _ID,
        Column("prompt", "string", "system and user text before the first step"),
        Column("completions", "strings", "one text a step: thinking, content, calls, results"),
        Column("labels", "bools", "one verdict a step"),
    ),
    write=write_stepwise,
    keeps=("the text of every judged step up to the first that is not", "the verdicts' signs"),
    loses=("structure of calls and results (they are text)", "neutral verdicts, and all after one", *_LOSES),
)


def write_openai_preference(pair: PreferencePair, calls: ToolCallStyle) -> Iterator[JSONObject]:
    prompt: JSONObject = {"messages": [strict_message(message) for message in pair.prompt]}
    if pair.tools:
        prompt |= {"tools": strict_tools(pair.tools), "parallel_tool_calls": True}
    yield {
        "input": prompt,
        "preferred_output": _single_message(pair.chosen),
        "non_preferred_output": _single_message(pair.rejected),
    }


def _single_message(turn: Sequence[Message]) -> list[JSONObject]:
    if len(turn) != 1:
        raise UnfitError("a turn of more than one message")
    return [strict_message(turn[0])]


OPENAI_PREFERENCE = Format(
    name="openai-preference",
    version=1,
    summary="OpenAI's preference rows: input, preferred_output, non_preferred_output",
    columns=(
        Column("input", "json", "the shared messages and tools"),
        Column("preferred_output", "json", "the better message"),
        Column("non_preferred_output", "json", "the worse message"),
    ),
    write=write_openai_preference,
    unit=Unit.PAIR,
    keeps=("role, content, calls and results of the shared prefix", "both answers", "tool schemas"),
    loses=("thinking, trajectory ids, the origin of the preference", "pairs with turns of several messages"),
)
