"""The one exception that the command line turns into a clean exit."""


class UserError(Exception):
    """A mistake that the person at the terminal can mend.

    The command line prints ``error: message`` and ``hint: hint`` on stderr and exits with status 2.
    Put ``file:line`` first in the message where there is one.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
