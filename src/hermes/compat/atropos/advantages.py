"""Advantages from step-wise rewards (`atroposlib.utils.advantages`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def allclose_to_first(
    values: Any,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
    return_vector: bool = False,
) -> Any:
    """Whether all arrays are close to the first; with `return_vector`, one boolean per array."""
    import numpy as np

    rows = np.asarray(values)
    close = np.isclose(rows, rows[0], rtol=rtol, atol=atol, equal_nan=equal_nan)
    rows_close = close.reshape(len(rows), -1).all(axis=1)
    return rows_close if return_vector else bool(rows_close.all())


def compute_stats(data: Sequence[Any]) -> dict[str, float]:
    """`mean` and `var` of all numbers in a nested, possibly jagged list."""
    numbers = list(_numbers(data))
    if not numbers:
        raise ValueError("there are no numbers to take the mean of")
    mean = sum(numbers) / len(numbers)
    return {"mean": mean, "var": sum((number - mean) ** 2 for number in numbers) / len(numbers)}


def _numbers(data: Any) -> Iterator[float]:
    if isinstance(data, int | float):
        yield data
    elif hasattr(data, "__iter__") and not isinstance(data, str):
        for part in data:
            yield from _numbers(part)
    elif hasattr(data, "item"):
        yield data.item()
    else:
        raise ValueError(f"{data!r} is not a number")


def compute_discounted_returns(rewards: Any, gamma: float) -> np.ndarray[Any, Any]:
    """The discounted return of each step."""
    import numpy as np

    values = np.asarray(rewards, dtype=np.float64 if isinstance(rewards, np.ndarray) else np.float32)
    returns = np.empty_like(values)
    running = 0.0
    for step in range(len(values) - 1, -1, -1):
        running = float(values[step]) + gamma * running
        returns[step] = running
    return returns


def compute_grpo_process_supervision_advantages(
    rewards: Sequence[Sequence[float]], gamma: float | None = None, std_tol: float = 1e-8
) -> list[np.ndarray[Any, Any]]:
    """Rewards normalised over all steps of the group, then summed from the end, discounted by `gamma`."""
    import numpy as np

    stats = compute_stats(rewards)
    spread = stats["var"] ** 0.5
    if spread < std_tol:
        raise ValueError(
            f"the rewards are all the same (standard deviation {spread:g}): there is no advantage"
        )
    normal = [(np.asarray(steps, dtype=np.float64) - stats["mean"]) / spread for steps in rewards]
    return [compute_discounted_returns(steps, 1.0 if gamma is None else gamma) for steps in normal]
