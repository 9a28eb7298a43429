"""Which language a conversation is in: by script, and for Latin script by its commonest words.

Simple on purpose: it distinguishes the languages below in text of a few sentences and returns 'unknown' for
anything shorter, mixed or unlisted. Code, URLs and tool results are ignored.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

from hermes.core import JSONObject
from hermes.data.curate.base import prose
from hermes.data.example import Example

UNKNOWN = "unknown"
_SCRIPTS = {
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
    "CJK": "zh",
    "CYRILLIC": "ru",
    "ARABIC": "ar",
    "HEBREW": "he",
    "GREEK": "el",
    "DEVANAGARI": "hi",
    "THAI": "th",
}
_WORDS = {
    "en": "the of and to in is that it for you with on this be are was have not what how from by or as at",
    "de": "der die das und ist nicht ein eine zu mit den von auf für im sich auch wie wird ich es dem als",
    "fr": "le la les de et est des une un du pour dans que qui pas sur avec ce il vous au plus par je y",
    "es": "el la los las y es de que en un una por con para no se del lo como más su al está son",
    "it": "il la di che e è un una per non in sono del con le si da come più della nel anche gli",
    "pt": "o a os as e é de que em um uma para com não se do da por mais como ao na no você são",
    "nl": "de het een en van is dat niet in op te voor met zijn die ook aan er maar om ik je wat",
}
_PROFILES = {code: frozenset(words.split()) for code, words in _WORDS.items()}
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+|<[^<>\n]{1,80}>", re.DOTALL)
_TOKEN = re.compile(r"[^\W\d_]+")
_LOOKED_AT_CHARS = 20_000
_ENOUGH_WORDS = 4
_ENOUGH_LETTERS = 4


def detect(text: str) -> str:
    """An ISO 639-1 code, or 'unknown'."""
    plain = _CODE.sub(" ", text[:_LOOKED_AT_CHARS]).lower()
    scripts = Counter(_script(char) for char in plain if char.isalpha())
    letters = scripts.total()
    if letters < _ENOUGH_LETTERS:
        return UNKNOWN
    if scripts["ja"] > letters / 20:
        return "ja"  # Japanese mixes its own scripts with Chinese characters
    script, count = scripts.most_common(1)[0]
    if script != "latin":
        return script if count > letters / 2 else UNKNOWN
    return _latin(_TOKEN.findall(plain))


@dataclass(frozen=True)
class Language:
    """Only conversations in these languages stay; those of unknown language are removed."""

    codes: tuple[str, ...]

    name = "language"

    def settings(self) -> JSONObject:
        return {"codes": list(self.codes)}

    def remove(self, example: Example) -> str | None:
        language = detect(prose(example))
        return None if language in self.codes else f"language: {language}"


def _script(char: str) -> str:
    name = unicodedata.name(char, "")
    return next((code for script, code in _SCRIPTS.items() if name.startswith(script)), "latin")


def _latin(words: list[str]) -> str:
    scores = {code: sum(word in profile for word in words) for code, profile in _PROFILES.items()}
    (first, best), (_, second) = sorted(scores.items(), key=lambda item: -item[1])[:2]
    clear = best > second and best >= max(2, len(words) // 20)
    return first if len(words) >= _ENOUGH_WORDS and clear else UNKNOWN
