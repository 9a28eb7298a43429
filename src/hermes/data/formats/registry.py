"""Every format by its name: one line each."""

from __future__ import annotations

from hermes.core.names import did_you_mean, nearest
from hermes.data.formats import atif, axolotl, messages, record, sharegpt, sts, tokens, trl
from hermes.data.formats.base import Format
from hermes.errors import UsageError

FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        sharegpt.FORMAT,
        sharegpt.USER_ASSISTANT,
        messages.FORMAT,
        messages.FINETUNE,
        trl.OPENAI_PREFERENCE,
        trl.SFT,
        trl.PROMPT_COMPLETION,
        trl.PREFERENCE,
        trl.UNPAIRED,
        trl.STEPWISE,
        axolotl.FORMAT,
        atif.FORMAT,
        sts.FORMAT,
        tokens.FORMAT,
        record.FORMAT,
    )
}


def get_format(name: str) -> Format:
    if name not in FORMATS:
        raise UsageError(
            f"no format '{name}'", did_you_mean(nearest(name, FORMATS), f"one of: {', '.join(FORMATS)}")
        )
    return FORMATS[name]
