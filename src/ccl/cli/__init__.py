"""The command line: one file per command, torch imported only when a command needs it."""

import os
import re
import sys
import time
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

# Threads that wait spin for a moment only, then sleep. By default they spin for milliseconds: with two other busy
# processes, two threads were 35 times slower than one. Must be set before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

_TURN = 8.0  # seconds that the other ranks wait before they report


def main() -> None:
    """Entry point; exit codes: 0 done, 2 your mistake, 3 not promoted, 130, 143 stopped by a signal, 1 else."""
    import typer

    from ccl.cli.app import app
    from ccl.errors import StoppedError, UserError, printable

    try:
        sys.exit(app(prog_name="ccl", standalone_mode=False))
    except typer.TyperException as error:  # a mistyped command or option, in one line as all other mistakes
        if message := error.format_message().strip():  # none where the help was shown instead
            _say(_in_a_line(message, getattr(error, "ctx", None)))
        sys.exit(2)
    except UserError as error:
        _say(*map(str, error.args))
        sys.exit(2)
    except StoppedError as stopped:
        if _rank() == 0:
            _say(f"{stopped}; its state is saved, the same command resumes")
        sys.exit(stopped.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _say("stopped")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except (ArithmeticError, OSError) as error:  # a full disk, a folder that vanished: not a fault of the program
        _say(str(error))
        sys.exit(1)
    except Exception:
        for line in traceback.format_exc().splitlines():
            print(printable(line), file=sys.stderr)
        print("ccl: this is a fault of ccl, not yours; please report it with the lines above", file=sys.stderr)
        sys.exit(1)


def _in_a_line(message: str, context: "typer.Context | None") -> str:
    """A usage error in one line, and where the valid options are listed."""
    what = " ".join(message.rstrip(".").split())
    # Typer passes on what pydantic says of a value.
    what = re.sub(r"Input should be .*, unable to parse string as (an? \w+)", r"it must be \1", what)
    what = what.replace("Input should be", "it must be")
    command = "ccl" if context is None else context.command_path
    return f"{what[0].lower()}{what[1:]}{'' if what.endswith('?') else ';'} see {command} --help"


def _rank() -> int:
    """The rank that torchrun gave to this process; `ccl.ranks` has it too, and takes seconds to import."""
    return int(os.environ.get("RANK", "0"))


def _say(*lines: str) -> None:
    """Print the last lines of a command; only the first rank reports what all ranks would."""
    from ccl.errors import printable

    rank = _rank()
    if rank > 0:
        time.sleep(_TURN)
    for line in lines:
        print(f"ccl: {f'rank {rank}: ' if rank else ''}{printable(line)}", file=sys.stderr)
