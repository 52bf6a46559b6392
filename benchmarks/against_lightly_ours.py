"""The side of ccl in `benchmarks.against_lightly`: one epoch after another of a run, and its best images a second."""

import json
import sys
from pathlib import Path

from ccl import run
from ccl.loading import load_settings

backbone, width, batch_size, scratch = sys.argv[1:]
settings = load_settings(
    "demo",
    [
        *(
            "dataset=digits",
            "steps=1",
            "strategy=finetuning",
            "data.resize=32",
            "views.size=32",
            "views.min_scale=0.08",
        ),
        *("views.flip=0.5", f"encoder.backbone={backbone}", f"encoder.width={width}", f"batch_size={batch_size}"),
        *("moco_v2.queue_size=4096", "epochs=3", "probe.after=never", "threads=1"),
        f"data.images_per_class={100 if backbone == 'convnet' else 13}",
    ],
)
rows = run(settings, Path(scratch) / "run").rows
best = max(row["num_images"] / row["seconds"] for row in rows if row["kind"] == "epoch")
print(json.dumps({"images_per_second": best}))
