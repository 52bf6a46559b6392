"""Parts of HTML pages: filled templates, and thumbnails embedded in the page."""

import base64
import hashlib
import io
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from ccl.data import BadImageError
from ccl.data.decoding import decode
from ccl.errors import printable
from ccl.report.tables import markdown, text

SIDE = 96  # longest side of an embedded image
_PIXELATED = 48  # up to this side an image is shown enlarged, with its pixels visible


def render(package: str, name: str, **values: object) -> str:
    """The template `name` of a package, in HTML with every value escaped; templates name each other "package:name"."""
    environment = Environment(
        autoescape=name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
        loader=FunctionLoader(_template),
    )
    environment.filters |= {"cell": text, "markdown": markdown, "file_name": lambda path: Path(path).name or path}
    script = _template("ccl.report:page.js")
    # The policy of a page names its one script by its hash: one that a name from outside brought in would not run.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    look = Markup(_template("ccl.report:look.css"))
    shared = {"look": look, "script": Markup(script), "script_hash": f"sha256-{digest}"}  # ours: not escaped
    return environment.get_template(f"{package}:{name}").render(**shared, **values)


def _shown(value: object) -> object:
    """What an expression of a template gives: a text from outside as on a terminal, but with its lines and tabs."""
    return printable(value, keeps="\n\t") if type(value) is str else value


def _template(name: str) -> str:
    package, _, file = name.partition(":")
    return (resources.files(package) / file).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Thumbnail:
    """An image as a page shows it."""

    source: str  # a data URI
    is_small: bool


def thumbnail(content: bytes, side: int = SIDE) -> Thumbnail | None:
    """A file's image, upright and of at most this side; None for what is not an image."""

    def reduction(width: int, height: int) -> int:  # at least twice the side is left, for a smooth last step
        return next((divisor for divisor in (8, 4, 2) if max(width, height) >= 2 * divisor * side), 1)

    try:
        picture = decode(io.BytesIO(content), reduction, is_kept=True)
    except BadImageError:
        return None
    is_small, file = max(picture.size) <= _PIXELATED, io.BytesIO()
    picture.thumbnail((side, side))
    kind = "png" if is_small else "jpeg"  # what is seen enlarged is kept without loss
    picture.save(file, format=kind, quality=85)
    return Thumbnail(f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}", is_small)
