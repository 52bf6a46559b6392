"""How much work a drop is worth and how much of it is kept: chosen for each drop from its own size.

Conventions, not optima: on two CPU cores a drop of photographs is learned in minutes to tens of minutes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ccl.errors import counted
from ccl.section import merged
from ccl.settings import Settings

MEMORY_SHARE = 0.05  # of all images seen that are remembered
FEWEST_KEPT, MOST_KEPT = 100, 2_000  # images, whatever the share says
_SMALLEST_QUEUE, _LARGEST_QUEUE = 64, 4096
# For weights that know something: fewer and smaller steps than from nothing.
_ADAPTING_BATCH, _ADAPTING_RATE = 64, 0.001  # at 0.01 with frozen batch norm features collapse (docs/adapting.md)
_ADAPTING = (300, 2, 20)  # updates, and the fewest and most epochs


@dataclass(frozen=True)
class DropSize:
    """What decides how much work a drop is."""

    num_new: int
    num_remembered: int = 0  # images of earlier drops that are learned with it
    num_seen: int = 0  # images of all earlier drops

    @property
    def num_images(self) -> int:
        """Of an epoch."""
        return self.num_new + self.num_remembered


def choose_effort(
    size: DropSize, is_gpu: bool, asked: Mapping[str, Any], adapts: bool = False
) -> tuple[dict[str, Any], str]:
    """Batch, learning rate, epochs, queue and memory, with a line that says why; a batch that was asked for counts.

    A set number of updates, whatever a drop's size, within bounds on the epochs. `adapts`: the encoder started from
    weights that know something.
    """
    num_images = size.num_images
    largest = _ADAPTING_BATCH if adapts else 256 if is_gpu else 128
    chosen = min(largest, max(16, _power_below(num_images // 8)))
    batch = asked["batch_size"] if isinstance(asked.get("batch_size"), int) else chosen
    queue = min(_LARGEST_QUEUE, max(_SMALLEST_QUEUE, _power_below(num_images // 2)))
    updates, fewest, most = _ADAPTING if adapts else (20_000, 50, 400) if is_gpu else (2_000, 5, 200)
    epochs = min(most, max(fewest, round(updates * batch / num_images)))
    budget = min(MOST_KEPT, max(FEWEST_KEPT, round(MEMORY_SHARE * (size.num_seen + size.num_new))))
    effort = {
        "batch_size": batch,
        "epochs": epochs,
        "optimizer": {"learning_rate": _ADAPTING_RATE if adapts else round(0.06 * batch / 128, 4)},
        "moco_v2": {"queue_size": queue},
        "memory": {"budget": budget},
    }
    why = _why(size, merged(effort, asked))
    return effort, f"{why}; to adapt, at a rate of {_ADAPTING_RATE:g}" if adapts else why


def _why(size: DropSize, values: Mapping[str, Any]) -> str:
    """What follows from the size, and what was asked for instead."""
    old = f" and {size.num_remembered:,} remembered" if size.num_remembered else ""
    budget = values["memory"]["budget"]
    kept = counted(budget, "image") if isinstance(budget, int) else budget
    epochs = counted(values["epochs"], "epoch")
    return (
        f"{counted(size.num_new, 'image')}{old} → batches of {values['batch_size']}, {epochs}, "
        f"a queue of {values['moco_v2']['queue_size']}; {kept} may be remembered in all"
    )


def _power_below(number: int) -> int:
    """The largest power of two that is not larger; 1 for less than 1."""
    return 1 << max(0, number.bit_length() - 1)


def effort_of(settings: Settings) -> dict[str, Any]:
    """The same values of settings that exist, as if they had been asked for."""
    return settings.model_dump(
        mode="json",
        include={
            "batch_size": True,
            "epochs": True,
            "optimizer": {"learning_rate"},
            "moco_v2": {"queue_size"},
            "memory": {"budget"},
        },
    )
