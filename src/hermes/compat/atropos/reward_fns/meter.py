"""The metre of Sanskrit verse, by the `chandas` package."""

from __future__ import annotations

import re
from typing import Any

from hermes.compat.atropos.reward_fns.function import RewardFunction
from hermes.errors import MissingDependencyError

_PAIRS = (
    "ai=E au=O kh=K gh=G ch=C jh=J ṭh=W ḍh=Q th=T dh=D ph=P bh=B ā=A ī=I ū=U ṛ=f ṝ=F ḷ=x ṅ=N ñ=Y ṭ=w ḍ=q "
    "ṇ=R ś=S ṣ=z ṃ=M ḥ=H"
)
_SLP1 = dict(re.findall(r"(\S+)=(\S)", _PAIRS))
_IAST = re.compile("|".join(_SLP1))


class ChandasMeterReward(RewardFunction):
    """How well a verse fits the metre, from 0 to 1, by the package's classifier."""

    def __init__(self, meter: str = "tristubh", weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(weight=weight, **kwargs)
        self.meter = meter
        self._classifier: Any = None

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        return [self._score(self.get_content(completion)) for completion in completions]

    def _score(self, text: str) -> float:
        result = self._classify(to_slp1(text))
        if not result:
            return 0.0
        fits = str(getattr(result, "name", result)).lower() == self.meter.lower()
        score = float(getattr(result, "score", fits))
        return max(0.0, min(1.0, score if fits else 1.0 - score))

    def _classify(self, text: str) -> Any:
        if self._classifier is None:
            try:
                from chandas import Classifier  # type: ignore[import-not-found]
            except ImportError as error:
                missing = MissingDependencyError("chandas", "", "The reward chandas_meter")
                missing.hint = "pip install chandas"
                raise missing from error
            self._classifier = Classifier.from_default_location()
        return self._classifier.classify(text)


def to_slp1(text: str) -> str:
    """IAST as SLP1, in which every sound is one letter."""
    return _IAST.sub(lambda match: _SLP1[match[0]], text)
