"""Owner of the studies of a process."""

import os
import pwd
import re

from autotune.errors import BadInput

OWNER = "AUTOTUNE_OWNER"
"""Variable with the owner of studies, for containers that all have one account."""
_NAME = re.compile(r"[\w.@-]{1,200}")


def user_name() -> str:
    """Return the owner of this process's studies: the one that is given, else the account.

    Raises:
        BadInput: the given name is not allowed.
    """
    if given := os.environ.get(OWNER):
        if not _NAME.fullmatch(given):
            raise BadInput(
                f"{OWNER} must be at most 200 letters, digits and characters of _.@-, got {given!r}"
            )
        return given
    try:
        return pwd.getpwuid(os.geteuid()).pw_name.replace(" ", "_")
    except KeyError:  # an account without a name, as in containers
        return str(os.geteuid())
