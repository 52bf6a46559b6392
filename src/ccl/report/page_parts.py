"""Parts of HTML pages: filled templates, and thumbnails embedded in the page."""

import base64
import hashlib
import io
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from ccl.data import BadImageError
from ccl.data.decoding import decode
from ccl.report.tables import markdown, text

SIDE = 96  # longest side of an embedded image
_MOST_BYTES = 4000  # of an image taken as it is, any of 32×32 is below; larger files would make the page heavy
_PIXELATED = 48  # up to this side an image is shown enlarged, with its pixels visible
_MIME = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp", "BMP": "image/bmp"}


def render(package: str, name: str, **values: object) -> str:
    """The template `name` of a package, in HTML with every value escaped; a name that it lacks is an error.

    Templates name each other as "package:name".
    """
    environment = Environment(
        autoescape=name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_template),
    )
    environment.filters |= {"cell": text, "markdown": markdown, "file_name": lambda path: Path(path).name or path}
    script = _template("ccl.report:page.js")
    # The policy of a page names its one script by its hash: one that a name from outside brought in would not run.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    look = Markup(_template("ccl.report:look.css"))
    shared = {"look": look, "script": Markup(script), "script_hash": f"sha256-{digest}"}  # ours: not escaped
    return environment.get_template(f"{package}:{name}").render(**shared, **values)


def _template(name: str) -> str:
    package, _, file = name.partition(":")
    return (resources.files(package) / file).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Thumbnail:
    """An image as a page shows it."""

    source: str  # a data URI
    is_small: bool


def thumbnail(content: bytes, side: int = SIDE) -> Thumbnail | None:
    """A file's image, as it is if small, else as a JPEG of at most this side; None for what is not an image."""
    try:
        picture = decode(io.BytesIO(content), lambda width, height: _reduction(max(width, height), side))
    except BadImageError:
        return None
    picture.thumbnail((side, side))
    with Image.open(io.BytesIO(content)) as header:  # of one of the formats that `decode` allows
        mime, longest = _MIME.get(header.format or ""), max(header.size)
    if mime is None or longest > side or len(content) > _MOST_BYTES:
        file = io.BytesIO()
        picture.save(file, format="JPEG", quality=85)
        mime, content = "image/jpeg", file.getvalue()
    return Thumbnail(f"data:{mime};base64,{base64.b64encode(content).decode()}", longest <= _PIXELATED)


def _reduction(longest: int, side: int) -> int:
    """At least twice the side is left, for a smooth last step."""
    return next((divisor for divisor in (8, 4, 2) if longest >= 2 * divisor * side), 1)
