"""Pages that need nothing else: how a template is filled, and the look that all of them share."""

from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ccl.report.tables import text


def render(package: str, name: str, **values: object) -> str:
    """The template `name` of a package, with every value escaped; a name that it lacks is an error."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["cell"] = text
    template = environment.from_string((resources.files(package) / name).read_text(encoding="utf-8"))
    look = (resources.files("ccl.report") / "look.css").read_text(encoding="utf-8")
    return template.render(look=Markup(look), **values)
