"""Access control of the Ray that a study uses."""

import re
from collections.abc import Mapping

from launchers.ray_token import MODE, SINCE


def judged(address: str | None, environment: Mapping[str, str], version: str) -> tuple[bool, str]:
    """Return whether a token protects the cluster, and a description with advice.

    Args:
        address: of the study's cluster; None: autotune starts one of its own.
        environment: of this process.
        version: of Ray.
    """
    mode = environment.get(MODE)
    whose = "a Ray of its own" if address is None else address
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < SINCE:
        wanted = ".".join(map(str, SINCE))
        return False, (
            f"{whose}: Ray {version} knows no tokens, and whoever reaches its ports, every user of its "
            f"machines at least, runs code there; upgrade to {wanted}, or take launcher: local"
        )
    if mode == "token" or (mode is None and address is None):
        mode_shown = f" ({MODE}=token)" if mode else ""
        return True, f"{whose}: runs code only for holders of its token{mode_shown}"
    mend = f"unset {MODE}" if address is None else "see `ray get-auth-token --generate`"
    return False, (
        f"{whose}: without {MODE}=token whoever reaches its ports, every user of its machines at "
        f"least, runs code there; {mend}"
    )
