"""The command line: one file per command, torch imported only when a command needs it."""

import sys
import traceback


def main() -> None:
    """Entry point; exit codes: 0 done, 2 the user's mistake, 130 stopped by Ctrl-C, 1 the rest."""
    from ccl.cli.app import app
    from ccl.errors import UserError

    try:
        app()
    except UserError as error:
        for line in str(error).splitlines():
            print(f"ccl: {line}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("ccl: stopped", file=sys.stderr)
        sys.exit(130)
    except ArithmeticError as error:
        print(f"ccl: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)
    except Exception:
        traceback.print_exc()
        print("ccl: this is a fault of ccl, not yours; please report it with the lines above", file=sys.stderr)
        sys.exit(1)
