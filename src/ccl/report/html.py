"""Pages that need nothing else: how a template is filled, and the look that all of them share."""

from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from ccl.report.tables import text


def render(package: str, name: str, **values: object) -> str:
    """The template `name` of a package, with every value escaped; a name that it lacks is an error.

    Templates name each other as "package:name".
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(_read)
    )
    environment.filters["cell"] = text
    return environment.get_template(f"{package}:{name}").render(look=Markup(_read("ccl.report:look.css")), **values)


def _read(name: str) -> str:
    package, _, file = name.partition(":")
    return (resources.files(package) / file).read_text(encoding="utf-8")
