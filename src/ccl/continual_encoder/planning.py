"""What learning a drop will take, before it begins: time, memory and disk."""

import shutil
from pathlib import Path

from ccl.data import Gathered
from ccl.errors import counted
from ccl.runs.build import build_recipe, build_selection
from ccl.runs.forecast import clock, learner_size, operations, seconds_here, size, work
from ccl.settings import Settings


def plan(settings: Settings, new: Gathered, num_remembered: int, folder: Path, keep_versions: int) -> list[str]:
    """A line each on the drop, its time, the memory and the disk that it takes; measures this machine for seconds."""
    num_new = len(new.source)
    drop = work(settings, [num_new], [num_remembered], 0)
    price = seconds_here(settings, drop.share_old)
    image_bytes = 3 * (settings.data.resize or build_recipe(settings).size) ** 2
    held = (num_new + num_remembered) * image_bytes if settings.data.resize else 0
    learner = learner_size(settings)
    network = learner.total + settings.batch_size * operations(settings, drop.share_old).held
    version = learner.checkpoint + _memory_bytes(settings, new, num_new + num_remembered, image_bytes)
    on_disk = keep_versions * version + settings.checkpoint.keep * version
    free = shutil.disk_usage(next(path for path in folder.absolute().parents if path.exists())).free
    old = f" and {num_remembered:,} remembered" if num_remembered else ""
    epochs = f"{counted(settings.epochs, 'epoch')} in batches of {settings.batch_size}"
    rows = {
        "drop": f"{counted(num_new, 'new image')}{old}, {epochs}",
        "time": f"about {clock(drop.times(price))} here, at {1 / price.learned:,.0f} images/s measured just now; other "
        "work makes it longer; a probe and the check of its health come on top",
        "memory": f"about {size(network + held)}: networks, a batch and {size(held)} of images; torch itself on top",
        "disk": f"about {size(version)} a version, {size(on_disk)} for {keep_versions} of them and for checkpoints; "
        f"{size(free)} are free",
    }
    return [f"{term:<8} {words}" for term, words in rows.items()]


def _memory_bytes(settings: Settings, new: Gathered, num_images: int, image_bytes: int) -> int:
    """Of the remembered images, as files; an upper bound where nobody knows how well they compress."""
    selection = build_selection(settings)
    if selection is None:
        return 0
    if selection.budget is not None and selection.budget.unit == "bytes":
        return selection.budget.limit
    limit = num_images if selection.budget is None else selection.budget.limit
    original = float(new.file_sizes.double().mean()) or image_bytes
    return int(min(num_images, limit) * (original if settings.data.resize is None else min(original, image_bytes)))
