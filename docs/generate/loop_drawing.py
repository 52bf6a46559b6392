"""The loop as a drawing, `docs/images/loop.svg`: what happens to a batch, and what is kept when a step ends.

python docs/generate/loop_drawing.py     (writes the file again; a test holds that it is the one this script makes)
"""

from html import escape
from pathlib import Path

TARGET = Path(__file__).parents[1] / "images" / "loop.svg"
WIDTH, HEIGHT = 880, 400
PAPER, INK, SOFT = "#fdfdfc", "#1d2126", "#5c6670"
PRESENT, PAST, PLAIN = "#e3edf7", "#fbeeda", "#eef0f1"
# left, top, width, colour, title, line below it
BOXES = [
    (20, 70, 180, PRESENT, "images of step t", "unlabelled; then let go"),
    (20, 270, 180, PAST, "rehearsal memory", "a few images of the past"),
    (245, 170, 160, PLAIN, "batch", "new and old together"),
    (450, 170, 145, PLAIN, "views", "crops, colours, blur"),
    (640, 70, 215, PRESENT, "learn the present", "MoCo v2, SimCLR, BYOL, …"),
    (640, 170, 215, PLAIN, "encoder", "an update of the summed losses"),
    (640, 270, 215, PAST, "keep the past", "teacher, extra sample queue, …"),
]
BOX_HEIGHT = 60
# Paths of the arrows, and the words beside them with their place
ARROWS = [
    ("M200 100 H222 V188 H239", "", 0, 0),
    ("M200 300 H222 V212 H239", "", 0, 0),
    ("M405 200 H444", "", 0, 0),
    ("M595 200 H634", "", 0, 0),
    ("M748 130 V164", "", 0, 0),
    ("M748 270 V236", "", 0, 0),
    (
        "M855 200 H868 V370 H110 V336",
        "when the step ends: K-Means, and the best-learned images of each cluster",
        440,
        362,
    ),
]


def drawing() -> str:
    """The whole SVG; fonts are the reader's own, so that nothing is fetched."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" aria-labelledby="t" font-family="system-ui, sans-serif">',
        '<title id="t">One step: new images and a small memory become a batch, the encoder learns the present and '
        "keeps the past, and a few images of the step are remembered</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{SOFT}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="{PAPER}"/>',
        f'<text x="20" y="38" font-size="18" font-weight="600" fill="{INK}">One step of the stream</text>',
    ]
    for path, words, x, y in ARROWS:
        parts.append(f'<path d="{path}" fill="none" stroke="{SOFT}" stroke-width="1.6" marker-end="url(#tip)"/>')
        if words:
            parts.append(
                f'<text x="{x}" y="{y}" font-size="13" text-anchor="middle" fill="{SOFT}">{escape(words)}</text>'
            )
    for left, top, width, colour, title, line in BOXES:
        middle = left + width / 2
        parts.append(f'<rect x="{left}" y="{top}" width="{width}" height="{BOX_HEIGHT}" rx="8" fill="{colour}"/>')
        parts.append(
            f'<text x="{middle:g}" y="{top + 26}" font-size="14.5" font-weight="600" text-anchor="middle" '
            f'fill="{INK}">{escape(title)}</text>'
        )
        parts.append(
            f'<text x="{middle:g}" y="{top + 46}" font-size="12" text-anchor="middle" fill="{SOFT}">'
            f"{escape(line)}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(drawing(), encoding="utf-8")
