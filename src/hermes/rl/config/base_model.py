"""The base model of a run: the configured one, or another that a person allows.

The agent chooses with the field `tinker.base_model` among `rl.model` and `rl.models`. A person may name any
model by unlocking the field. The recipe follows the chosen model's size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core.names import did_you_mean, is_policy_name, nearest
from hermes.errors import HostError, UsageError
from hermes.rl.model_shape import BUNDLED, HUB_NAMES

if TYPE_CHECKING:
    from hermes.config.settings import RlSettings
    from hermes.core import JSON
    from hermes.rl.config.fields import FieldInfo

BASE_MODEL = "tinker.base_model"
_SHORT = "base_model"
_WORDS = re.compile(r"[\w./-]*\w")


class ForbiddenModelError(UsageError):
    """The model is not among those that may be trained."""

    def __init__(self, model: str, allowed: tuple[str, ...]) -> None:
        listed = ", ".join((*allowed[1:], model))
        super().__init__(
            f"{model} may not be trained: rl.model and rl.models allow {', '.join(allowed)}",
            f"a person can allow it (hermes config set rl.models '[{listed}]'), or use --unlock",
        )
        self.allowed = allowed


def allowed_models(settings: RlSettings) -> tuple[str, ...]:
    """The configured base model first."""
    return tuple(dict.fromkeys((settings.model, *settings.models)))


def models_named_in(text: str) -> tuple[str, ...]:
    """The models that a sentence names: known ones by their short names, others as ORG/NAME with a size."""
    from hermes.training.schedule import parameters_of

    words = (word.rstrip(".") for word in _WORDS.findall(text))
    names = (HUB_NAMES.get(word.lower(), word) for word in words)
    return tuple(dict.fromkeys(name for name in names if "/" in name and parameters_of(name) is not None))


def chosen_model(settings: RlSettings, edits: Mapping[str, JSON]) -> str:
    """The base model of a selection: an edit, else a value of the person's, else the configured one."""
    values = settings.values
    model = edits.get(BASE_MODEL) or values.get(BASE_MODEL) or values.get(_SHORT) or settings.model
    return str(model)


def check_model(settings: RlSettings, name: str, *, unlock: bool) -> str:
    """The full name of an allowed model; the part after the slash is enough, in any case of letters.

    `unlock`: a person names the model, so that any is allowed. UsageError for trained weights, which are no
    base model.
    """
    kind, colon, weights = name.partition(":")
    if kind == "policy" or (colon and kind == "run") or is_policy_name(name):
        start = name if kind == "policy" else (weights or name).partition("@")[0]
        raise UsageError(
            f"'{name}' names trained weights, not a base model",
            f"--set start_from={start} starts from them; --model names what they were trained on",
        )
    allowed = allowed_models(settings)
    for model in allowed:
        if name.lower() in (model.lower(), model.rpartition("/")[2].lower()):
            return model
    if unlock:
        return name if Path(name).exists() else HUB_NAMES.get(name.lower(), name)
    raise ForbiddenModelError(name, allowed)


def hub_folder(model: str, *files: str) -> Path:
    """The folder of the hub's model here; what is missing is downloaded. `files`: only these."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub import errors as hub

    names = [HUB_NAMES[name] for name in nearest(model.lower(), HUB_NAMES)]
    check = did_you_mean(names, "check its name in --model or rl.model")
    try:
        return Path(snapshot_download(model, allow_patterns=list(files) or None))
    except hub.GatedRepoError as error:
        raise UsageError(
            f"the model {model} is for those who accepted its terms",
            f"accept them at {constants.ENDPOINT}/{model}, then: hermes config set HF_TOKEN",
        ) from error
    except (hub.RepositoryNotFoundError, hub.HFValidationError) as error:
        raise UsageError(
            f"there is no model '{model}', neither in a folder here nor at {constants.ENDPOINT}",
            f"{check} (ORG/NAME as the hub writes it, a folder, or {BUNDLED}); a private one needs HF_TOKEN",
        ) from error
    except (hub.HfHubHTTPError, OSError) as error:
        raise HostError(
            f"the model {model} is not on this machine, and {constants.ENDPOINT} cannot be reached for it",
            f"{check}, or check the network, a proxy and HF_ENDPOINT; {BUNDLED} and folders need no hub",
        ) from error


def model_field(settings: RlSettings, field: FieldInfo) -> FieldInfo:
    """The field as the agent sees it: a choice where several models are allowed, locked where one is."""
    allowed = allowed_models(settings)
    if len(allowed) == 1:
        return field
    return replace(field, type="choice", choices=allowed, lock=None)
