"""Figures as SVG for pages, and their styles. Without pyplot, so that nothing global is changed."""

import hashlib
import io
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from ccl.strategies import STRATEGIES

if TYPE_CHECKING:
    from ccl.report.arms import Arm

ArmStyle = tuple[str, str, Any]  # colour, marker (empty for lines without points), and a line style of matplotlib's
INK = "#010203"  # stands for the page's text colour; nothing else is drawn in it
GREY = "#8a8a8a"
# Okabe and Ito's colours, safe for colour-blind readers, without their yellow (too pale on white); olive is Tol's.
# A marker beside each, so that no strategy is recognised by its colour alone.
STYLES: dict[str, tuple[str, str]] = {
    "finetuning": ("#d55e00", "o"),
    "simple_rehearsal": ("#e69f00", "s"),
    "variance_rehearsal": ("#56b4e9", "^"),
    "variance_distillation": ("#009e73", "v"),
    "ccl": ("#0080c6", "D"),
    "variance_queue": ("#cc79a7", "P"),
    "random_ccl": ("#999933", "X"),
    "multi_view_rehearsal": ("#b40069", "p"),
    "balanced_rehearsal": ("#f07878", "h"),
    "upper_bound": (INK, ""),
}
# For strategies without a style: far from the colours above and from each other, on light and on dark pages.
_SPARE_COLOURS = (
    *("#9600ff", "#695a0f", "#784ba5", "#ff0f69"),
    *("#006978", "#9678ff", "#c33cc3", "#00b400", "#a53c1e"),
    *("#ff001e", "#1e6900", "#d29669", "#ff0fff", "#004bff"),
)
_SPARE_MARKERS = ("h", "p", "<", ">", "*", "d", "8")
# The arms of one strategy.
_LINES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (6, 1.4, 1.2, 1.4)), (0, (1.6, 1.2)))

_INKED = ["text.color", "xtick.color", "ytick.color", "grid.color"]
_INKED += ["axes.edgecolor", "axes.labelcolor", "axes.titlecolor"]
_DRAWING: Any = dict.fromkeys(_INKED, INK) | {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "figure.constrained_layout.use": True,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9.5,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "ccl",
    # Names come from files and folders: a dollar sign in one does not begin a formula.
    "text.parse_math": False,
    "text.usetex": False,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Context manager: the report's matplotlib settings."""
    with matplotlib.rc_context(_DRAWING), warnings.catch_warnings():
        # Names in scripts that matplotlib's font lacks are still right in a page, where the reader's fonts draw them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


class _UndatedCanvas(FigureCanvasSVG):
    """Writes no date, and asks for none: a wrong clock may have none."""

    def print_svg(self, filename: Any, *, bbox_inches_restore: Any = None, **_: Any) -> None:
        unstamped = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        super().print_svg(  # type: ignore[no-untyped-call]
            filename, bbox_inches_restore=bbox_inches_restore, metadata=unstamped
        )


def to_svg(figure: Figure, key: str = "") -> str:
    """Inline SVG: transparent, text and lines in the page's colour, the same text for the same figure and key."""
    file = io.StringIO()
    with drawing():
        figure.set_canvas(_UndatedCanvas(figure))
        figure.savefig(file, format="svg", transparent=True)
    svg = "<svg" + file.getvalue().partition("<svg")[2].replace(INK, "currentColor")
    # Coordinates to a hundredth of a point: a third of the text less. No name is inside a tag.
    svg = re.sub(r"<(?:path|use)\b[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), svg)
    # Several figures stand in one page, where an id may exist once; equal figures differ in their keys.
    own = hashlib.sha256((key + svg).encode(errors="replace")).hexdigest()[:8]
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{own}-", svg)


@dataclass(frozen=True)
class Drawing:
    """A figure in a page, and what is said of it."""

    name: str
    svg: Markup  # empty where there is nothing to draw
    width: int  # in the page's pixels
    caption: tuple[str, ...] = ()  # lines


def drawing_of(name: str, figure: Figure | None, key: str, caption: tuple[str, ...] = ()) -> Drawing:
    """A figure for a page; the key is its own there."""
    if figure is None:
        return Drawing(name, Markup(), 0)
    # Our own drawing; matplotlib has escaped the names in it.
    return Drawing(name, Markup(to_svg(figure, key)), round(96 * figure.get_figwidth()), caption)


def short(name: str, longest: int = 18) -> str:
    """A name from outside as a label: printable, on one line, cut in its middle where it is long."""
    plain = "".join(sign if sign.isprintable() else " " if sign.isspace() else "�" for sign in name)
    half = (longest - 1) // 2
    return plain if len(plain) <= longest else f"{plain[: longest - 1 - half]}…{plain[-half:]}"


def strategy_style(name: str) -> tuple[str, str]:
    """Colour and marker of a strategy, the same in every figure; one of the user's own gets one by its name."""
    others = [one for one in STRATEGIES if one not in STYLES]
    place = others.index(name) if name in others else zlib.crc32(name.encode(errors="replace"))
    turn, place = divmod(place, len(_SPARE_COLOURS))
    return STYLES.get(name) or (_SPARE_COLOURS[place], _SPARE_MARKERS[(place + turn) % len(_SPARE_MARKERS)])


def arm_styles(arms: "Sequence[Arm]") -> list[ArmStyle]:
    """Colour and marker by strategy; further arms of one strategy differ in their lines, and then in their markers."""
    found: list[ArmStyle] = []
    seen = Counter[str]()
    for arm in arms:
        colour, marker = strategy_style(arm.strategy)
        # What is learned all at once is one level: never drawn through, so that it isn't taken for a curve.
        lines = _LINES[1:] if arm.is_all_at_once else _LINES
        turn, variant = divmod(seen[arm.strategy], len(lines))
        seen[arm.strategy] += 1
        found.append((colour, _SPARE_MARKERS[turn % len(_SPARE_MARKERS)] if turn else marker, lines[variant]))
    return found
