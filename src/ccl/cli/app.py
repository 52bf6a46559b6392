"""The command-line application with all its commands."""

import typer

from ccl.cli.compare import compare
from ccl.cli.demo import demo
from ccl.cli.doctor import doctor
from ccl.cli.encode import encode
from ccl.cli.export import export
from ccl.cli.learn import learn
from ccl.cli.methods import methods
from ccl.cli.options import echo
from ccl.cli.predict import predict
from ccl.cli.probe import probe
from ccl.cli.report import report
from ccl.cli.reproduce import reproduce
from ccl.cli.run import run
from ccl.cli.search import search
from ccl.cli.status import pin, promote, rollback, status
from ccl.cli.verify import verify

app = typer.Typer(
    name="ccl",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Learn image features from unlabelled images that arrive step by step, forgetting as little as possible.\n\n"
    "A first look: [bold]ccl demo[/bold]",
)


def _version(wanted: bool) -> None:
    if wanted:
        import platform

        import torch

        import ccl

        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        echo(f"ccl {ccl.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {device}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", "-V", callback=_version, is_eager=True, help="Show versions and the device."
    ),
) -> None:
    pass


_RUNS = (demo, run, compare, reproduce, methods, report)
_ENCODERS = (learn, status, rollback, promote, pin, encode, probe, predict, search, export)
_CHECKS = (verify, doctor)
for command in (*_RUNS, *_ENCODERS, *_CHECKS):  # the order of `ccl --help`
    app.command()(command)
