"""Runs as one HTML file that needs nothing else: no network, no scripts, no fonts, and every name escaped."""

import base64
import csv
import io
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from ccl.loading import dump_settings
from ccl.report import figures
from ccl.report.run_folder import RunRecord
from ccl.report.tables import labels, summary, text

_MOST_IMAGES = 60  # of a run's memory
_THUMBNAIL = 96  # longest side of an embedded image; a larger one is made smaller, so that the page stays light
_PIXELATED = 48  # up to this side an image is shown enlarged, with its pixels visible
_MIME = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp", "BMP": "image/bmp"}


@dataclass(frozen=True)
class KeptImage:
    """One image of the memory, as it is shown."""

    source: str  # a data URI
    is_small: bool
    caption: str


def write_page(records: Sequence[RunRecord], path: Path, title: str) -> None:
    """Write the report of runs of one stream; a reader never meets half a page."""
    page = _render(records, title)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    # A folder's name may hold bytes that are no text.
    unfinished.write_text(page, encoding="utf-8", errors="replace")
    os.replace(unfinished, path)


def _render(records: Sequence[RunRecord], title: str) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["cell"] = text
    template = environment.from_string((resources.files("ccl.report") / "page.html.j2").read_text(encoding="utf-8"))
    table = summary(records)
    runs = [_run(name, record) for name, record in zip(labels(records), records, strict=True)]
    streams = {}
    if any(record.accuracy is not None for record in records):
        streams = {
            "matrices": _svg(figures.accuracy_matrices(records)),
            "accuracy": _svg(figures.accuracy_over_stream(records)),
            "first_step": _svg(figures.first_step_over_stream(records)),
        }
    first_step = records[0].step_names[0]
    return template.render(
        title=title,
        headline=_headline(records),
        settings_line=_settings_line(records),
        table=table,
        streams=streams,
        runs=runs,
        first_step=first_step,
    )


def _svg(figure: Figure) -> Markup:
    # Our own drawing; matplotlib has escaped the names in it.
    return Markup(figures.to_svg(figure))


def _headline(records: Sequence[RunRecord]) -> str:
    """What was run, in a sentence."""
    names = records[0].step_names
    stream = " → ".join(names) if len(names) <= 12 else f"{names[0]} → … → {names[-1]}"
    runs = "One run" if len(records) == 1 else f"{len(records)} runs"
    steps = "one step" if len(names) == 1 else f"{len(names)} steps"
    num_images = sum(int(step.get("num_images", 0)) for step in records[0].protocol["steps"])
    done = sum(record.status.get("state") == "complete" for record in records)
    state = "" if done == len(records) else f" {done} of {len(records)} complete."
    return f"{runs} over a stream of {num_images:,} unlabelled images in {steps}: {stream}.{state}"


def _settings_line(records: Sequence[RunRecord]) -> str:
    """The settings that everyone types, as one types them; several values where the runs differ."""
    keys = ("dataset", "strategy", "objective", "steps", "epochs", "batch_size", "seed")
    parts = []
    for key in keys:
        values = [getattr(record.settings, key) for record in records if getattr(record.settings, key) is not None]
        shown = dict.fromkeys(",".join(value) if isinstance(value, list) else str(value) for value in values)
        if shown:
            parts.append(f"{key}={' | '.join(shown)}")
    return "  ".join(parts)


def _run(name: str, record: RunRecord) -> dict[str, Any]:
    has_epochs = any(row["kind"] == "epoch" for row in record.rows)
    return {
        "name": name,
        "losses": _svg(figures.losses(record)) if has_epochs else None,
        "gallery": _gallery(record.folder / "memory"),
        "protocol": _protocol(record),
        "settings": dump_settings(record.settings),
    }


def _protocol(record: RunRecord) -> list[tuple[str, str]]:
    """Terms and what they are, for a definition list."""
    items = [
        ("folder", str(record.folder)),
        *(("status: " + key, _plain(value)) for key, value in record.status.items()),
    ]
    items += [(key.replace("_", " "), _plain(value)) for key, value in record.protocol.items() if key != "steps"]
    for number, step in enumerate(record.protocol["steps"], 1):
        about = ", ".join(f"{_plain(value)} {key.removeprefix('num_')}" for key, value in step.items() if key != "name")
        items.append((f"step {number}", f"{step['name']}: {about}"))
    probes = dict.fromkeys(str(row["protocol"]) for row in record.rows if row["kind"] == "probe")
    items += [("probe protocol", probe) for probe in probes]
    paper = [row["accuracy"] for row in record.rows if row["kind"] == "paper_probe"]
    items += [("all classes by the paper's probe", f"{accuracy:.1f} %") for accuracy in paper]
    return items


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _gallery(memory: Path) -> list[tuple[str, list[KeptImage]]]:
    """Groups of kept images with their titles: those of lowest and highest variance, or drawn at random."""
    rows = _index(memory)
    scored = sorted((row for row in rows if not math.isnan(row[3])), key=lambda row: row[3])
    if not scored:  # a random draw has no scores: images at even distances over the steps
        every = max(1, math.ceil(len(rows) / _MOST_IMAGES))
        groups = [(f"Drawn at random ({len(rows)} kept)", rows[::every])]
    else:
        half = min(_MOST_IMAGES // 2, math.ceil(len(scored) / 2))
        lowest, highest = scored[:half], scored[half:][-half:]
        groups = [(f"Lowest variance ({len(rows)} kept)", lowest), ("Highest variance among the kept", highest)]
    shown = [(title, [image for row in group if (image := _embedded(memory, *row))]) for title, group in groups]
    return [(title, images) for title, images in shown if images]


def _index(memory: Path) -> list[tuple[str, str, str, float]]:
    """File, step, cluster and score of each image; lines that are none are passed over."""
    rows = []
    try:
        with (memory / "index.csv").open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                try:
                    rows.append((line["file"], line["step"], line["cluster"], float(line["score"])))
                except (KeyError, TypeError, ValueError):
                    continue
    except (OSError, UnicodeDecodeError, csv.Error):
        return []
    return rows


def _embedded(memory: Path, name: str, step: str, cluster: str, score: float) -> KeptImage | None:
    """The image in the page itself; None for what is no image, or lies elsewhere than in the memory's folder."""
    if Path(name).name != name:
        return None
    try:
        content = (memory / name).read_bytes()
        with Image.open(io.BytesIO(content)) as image:
            mime, longest = _MIME.get(image.format or ""), max(image.size)
            if mime is None or longest > _THUMBNAIL:
                mime, content = "image/png", _thumbnail(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    variance = "" if math.isnan(score) else f", variance {score:.2g}"
    source = f"data:{mime};base64,{base64.b64encode(content).decode()}"
    group = "" if cluster == "-1" else f", cluster {cluster}"  # a random draw has no clusters
    return KeptImage(source, longest <= _PIXELATED, f"step {step}{group}{variance}")


def _thumbnail(image: Image.Image) -> bytes:
    small = image.convert("RGB")
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    small.save(file, format="PNG")
    return file.getvalue()
