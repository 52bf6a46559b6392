"""The one exception for what the user can mend: shown as a single line, exit code 2."""


class UserError(ValueError):
    """Something the user gave is wrong; the message is one line that says what, and what to do instead."""
