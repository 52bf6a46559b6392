"""The command line: one file per command, torch imported only when a command needs it."""

import os
import sys
import traceback

# Threads that wait spin for a moment only, then sleep. By default they spin for milliseconds, and beside two
# busy processes two threads were 35 times slower than one. Must stand before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def main() -> None:
    """Entry point; exit codes: 0 done, 2 the user's mistake, 130 and 143 stopped by a signal, 1 the rest."""
    from ccl.cli.app import app
    from ccl.errors import StoppedError, UserError

    try:
        app()
    except UserError as error:
        for line in str(error).splitlines():
            print(f"ccl: {line}", file=sys.stderr)
        sys.exit(2)
    except StoppedError as stopped:
        print(f"ccl: {stopped}; its state is saved, the same command goes on", file=sys.stderr)
        sys.exit(stopped.exit_code)
    except KeyboardInterrupt:
        print("ccl: stopped", file=sys.stderr)
        sys.exit(130)
    except ArithmeticError as error:
        print(f"ccl: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that vanished: not a fault of the program
        print(f"ccl: {error}", file=sys.stderr)
        sys.exit(1)
    except Exception:
        traceback.print_exc()
        print("ccl: this is a fault of ccl, not yours; please report it with the lines above", file=sys.stderr)
        sys.exit(1)
