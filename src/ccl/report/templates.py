"""How templates are filled: pages that need nothing else, with the look that all of them share, and Markdown."""

from importlib import resources

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
    environment.filters |= {"cell": text, "markdown": markdown}
    return environment.get_template(f"{package}:{name}").render(look=Markup(_read("ccl.report:look.css")), **values)


def _read(name: str) -> str:
    package, _, file = name.partition(":")
    return (resources.files(package) / file).read_text(encoding="utf-8")
