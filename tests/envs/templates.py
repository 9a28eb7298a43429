"""Chat templates of several families, put on copies of the bundled tokenizer."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHATML = None
"""The bundled model's own."""

QWEN = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- set ns = namespace(last=messages|length - 1, looking=true) %}
{%- for m in messages[::-1] %}{% set i = messages|length - 1 - loop.index0 %}
{%- if ns.looking and m.role == 'user' and not m.content.startswith('<tool_response>') %}
{%- set ns.looking = false %}{% set ns.last = i %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set said = m.content %}
{%- if '</think>' in said and loop.index0 < ns.last %}
{%- set said = said.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}{{ '<|im_start|>assistant\\n' + said + '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif m.role == 'user' or not loop.first %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA = """\
{{- '<|begin_of_text|>' }}{% for m in messages %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}{% if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

MISTRAL = """\
{{- '<s>' }}{% for m in messages %}
{%- if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}
{%- elif m.role == 'assistant' %}{{ m.content + '</s>' }}
{%- elif m.role == 'system' and loop.first %}{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}
{%- endfor %}"""


@dataclass(frozen=True)
class Family:
    name: str
    template: str | None
    end: str
    """The control token with which a model of this family ends its turn."""
    marks: tuple[str, ...] = ()
    """Control tokens that the bundled tokenizer lacks."""


FAMILIES = (
    Family("chatml", CHATML, "<|im_end|>"),
    Family("qwen", QWEN, "<|im_end|>"),
    Family(
        "llama",
        LLAMA,
        "<|eot_id|>",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
    Family(
        "mistral",
        MISTRAL,
        "</s>",
        ("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    ),
)


@cache
def bundled_tokenizer(home: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    from hermes.models.local.bundled import model_folder

    return AutoTokenizer.from_pretrained(model_folder(home))


def dressed(tokenizer: PreTrainedTokenizerBase, family: Family) -> PreTrainedTokenizerBase:
    """The tokenizer as a model of this family has it."""
    twin = copy.deepcopy(tokenizer)
    if family.marks:
        twin.add_special_tokens({"additional_special_tokens": list(family.marks)})
    if family.template is not None:
        twin.chat_template = family.template
    return twin
