"""Runs as one HTML file that needs nothing else: no network, no fonts, one small script, and every name escaped."""

import csv
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ccl.atomic_files import write_file
from ccl.loading import dump_settings
from ccl.report import drawings
from ccl.report.arm_table import about_columns, along_the_stream, arm_table, differences, every_run, protocol_line
from ccl.report.arms import Arm, has_paper_probe, has_seeds, make_arms, of_equal_steps, records_of
from ccl.report.embedding_maps import embedding_maps
from ccl.report.page_parts import Thumbnail, render, thumbnail
from ccl.report.svg_figures import Drawing, drawing_of
from ccl.report.tables import Table, to_csv, to_latex, to_markdown
from ccl.runs.run_folder import MEMORY, RunRecord

# Sections in their order, and what they are called.
HEADINGS = {
    "arms": "Results",
    "differences": "Differences to Finetuning",
    "accuracy": "Accuracy over the stream",
    "matrices": "Accuracy matrices",
    "losses": "Losses",
    "memory": "Images kept",
    "map": "Old and new data",
    "protocol": "Protocol and settings",
}
_MOST_IMAGES = 60  # of a run's memory
_MOST_IMAGES_OF_ALL = 600  # of all memories together: a page of twenty arms stays below 5 MB
KeptImage = tuple[Thumbnail, tuple[str, ...]]  # its facts: step, and cluster and score where it has them


def write_outcome(
    records: Sequence[RunRecord], folder: Path, title: str, *, name: str = "report", published: Table | None = None
) -> list[Table]:
    """Write name.html, name.md, name.tex, and as CSV the arms, every test and every run; returns the tables."""
    tables = write_page(records, folder / f"{name}.html", title, published)
    tested = differences(make_arms(records))
    texts = {
        f"{name}.md": "\n".join([f"# {title}\n", *map(to_markdown, tables)]),
        f"{name}.tex": "\n".join(map(to_latex, tables)),
        f"{name}-arms.csv": to_csv(tables[0]),
        f"{name}-runs.csv": to_csv(every_run(records)),
    }
    texts |= {f"{name}-differences.csv": to_csv(tested)} if tested.rows else {}
    for file, content in texts.items():
        write_file(folder / file, content)
    return tables


def write_page(records: Sequence[RunRecord], path: Path, title: str, published: Table | None = None) -> list[Table]:
    """Write the page of runs; a reader never sees half of it. Returns its tables."""
    arms = make_arms(records)
    tables = [arm_table(arms), *([] if published is None else [published])]
    tables += [along_the_stream(arms)] if has_paper_probe(arms) else []
    probed = [arm for arm in arms if drawings.matrices_of(arm)]
    axis = drawings.varied_number(probed) if probed else None
    maps, seed = embedding_maps(arms)
    runs = [(_run_name(arm, record), record) for arm in arms for record in arm.records]
    keys = dict.fromkeys(key for _, record in runs for key in record.status if key in ("state", "reason"))
    rows = [(name, str(run.folder), *(str(run.status.get(key, "")) for key in keys)) for name, run in runs]
    content: dict[str, Any] = {
        **dict.fromkeys(HEADINGS, ()),
        **(_streams(arms, probed, axis) if probed else {}),
        "losses": _drawings((_run_name(arm, arm.records[0]), drawings.losses(arm.records[0])) for arm in arms),
        "memory": _memories(arms),
        "map": maps,
        "protocol": [(arm.name, dump_settings(arm.settings)) for arm in arms],
    }
    page = render(
        "ccl.report",
        "page.html.j2",
        title=title,
        headline=_headline(arms),
        tables=tables,
        about_arms=" ".join(about_columns(arms, tables[0].columns)),  # the protocol ends the page
        is_sweep=axis is not None,
        full_change=drawings.FULL_CHANGE,
        protocol=protocol_line(arms),
        headings=HEADINGS,
        content=content,
        num_arms=len(arms),
        most_curves=drawings.MOST_CURVES,
        map_seed=seed,
        runs=Table("Every run", ("Run", "folder", *keys), tuple(rows), ""),
        has_seeds=has_seeds(arms),
        has_paper_probe=has_paper_probe(arms),
        has_upper_bound=any(arm.is_all_at_once for arm in arms),
    )
    write_file(path, page)
    return tables


def _streams(arms: Sequence[Arm], probed: Sequence[Arm], axis: str | None) -> dict[str, Sequence[Drawing]]:
    """Drawings of the probes, by section; the first is of what is varied, else of the stream."""
    groups = of_equal_steps(probed)
    names = {count: "" if len(groups) == 1 else f"T = {count}" for count in groups}
    compared = drawings.forest(arms) if has_seeds(arms) else None
    stream = _drawings((names[n], drawings.accuracy_over_stream(group, n)) for n, group in groups.items())
    return {
        "arms": _drawings([("", drawings.accuracy_against(probed, axis))]) if axis else stream,
        "differences": _drawings([("", compared)] if compared else []),
        "accuracy": stream if axis else [],
        "matrices": _drawings((arm.name, drawings.accuracy_matrix(arm)) for arm in probed),
    }


def _drawings(figures_by_name: Iterable[tuple[str, Figure | None]]) -> list[Drawing]:
    """A section's drawings; numbered, so that equal ones of two arms get different ids."""
    return [drawing_of(name, figure, str(number)) for number, (name, figure) in enumerate(figures_by_name)]


def _run_name(arm: Arm, record: RunRecord) -> str:
    """A single run's name: its arm, and its seed where the arm has several."""
    return f"{arm.name}, seed {record.settings.seed}" if len(arm.records) > 1 else arm.name


def _headline(arms: Sequence[Arm]) -> str:
    """A sentence on what was run."""
    records = records_of(arms)
    streams = list(dict.fromkeys(tuple(record.step_names) for record in records))
    names = [" → ".join(names) if len(names) <= 12 else f"{names[0]} → … → {names[-1]}" for names in streams]
    num_images = sum(int(step.get("num_images", 0)) for step in records[0].protocol["steps"])
    done = sum(record.status.get("state") == "complete" for record in records)
    num = "One run" if len(records) == 1 else f"{len(records)} runs"
    num += f" of {len(arms)} arms" if 1 < len(arms) < len(records) else ""
    steps = " or ".join(map(str, sorted({len(names) for names in streams})))
    about = f"{num} over a stream of {num_images:,} unlabelled images in {steps} step{'s' * (steps != '1')}"
    about += f": {names[0]}." if len(streams) == 1 else "."
    return about if done == len(records) else f"{about} {done} of {len(records)} complete."


def _memories(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """The kept images of each arm's first seed that has some."""
    most = max(2, min(_MOST_IMAGES, _MOST_IMAGES_OF_ALL // len(arms)))
    found: list[dict[str, Any]] = []
    for arm in arms:
        every = ({"name": _run_name(arm, one), "images": gallery(one.folder, most)} for one in arm.records)
        found += islice((memory for memory in every if memory["images"]), 1)
    return found


def gallery(folder: Path, most: int = _MOST_IMAGES) -> list[KeptImage]:
    """A run's kept images, the lowest score first; of many, some at even distances."""
    memory = folder / MEMORY
    rows = sorted(_index(memory), key=lambda row: 0.0 if math.isnan(row[3]) else row[3])  # a random draw has none
    shown = rows[:: max(1, math.ceil(len(rows) / most))]
    return [image for row in shown if (image := _embedded(memory, *row))]


def _index(memory: Path) -> list[tuple[str, str, str, float]]:
    """File, step, cluster and score of each image; other lines are skipped."""
    rows = []
    try:
        for line in csv.DictReader((memory / "index.csv").read_text(encoding="utf-8").splitlines()):
            with suppress(KeyError, TypeError, ValueError):
                rows.append((line["file"], line["step"], line["cluster"], float(line["score"])))
    except (OSError, ValueError, csv.Error):
        return []
    return rows


def _embedded(memory: Path, name: str, step: str, cluster: str, score: float) -> KeptImage | None:
    """The image in the page itself; None for what is not an image of the memory's folder."""
    try:
        shown = thumbnail((memory / name).read_bytes()) if Path(name).name == name else None
    except (OSError, ValueError):  # a name that no file can have
        return None
    facts = [f"step {step}"]
    facts += [] if cluster == "-1" else [f"cluster {cluster}"]  # a random draw has no clusters
    facts += [] if math.isnan(score) else [f"score {score:.2g}"]
    return None if shown is None else (shown, tuple(facts))
