"""How templates are filled: pages that need nothing else, with the look that all of them share, and Markdown."""

import base64
import hashlib
from importlib import resources
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from ccl.report.tables import markdown, text


def render(package: str, name: str, **values: object) -> str:
    """The template `name` of a package, in HTML with every value escaped; a name that it lacks is an error.

    Templates name each other as "package:name".
    """
    environment = Environment(
        autoescape=name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_read),
    )
    environment.filters |= {"cell": text, "markdown": markdown, "file_name": lambda path: Path(path).name or path}
    script = _read("ccl.report:page.js")
    # The policy of a page names its one script by its hash: one that a name from outside brought in would not run.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    look = Markup(_read("ccl.report:look.css"))
    shared = {"look": look, "script": Markup(script), "script_hash": f"sha256-{digest}"}  # ours: not escaped
    return environment.get_template(f"{package}:{name}").render(**shared, **values)


def _read(name: str) -> str:
    package, _, file = name.partition(":")
    return (resources.files(package) / file).read_text(encoding="utf-8")
