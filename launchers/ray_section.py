"""Section of a study file for the launcher on a Ray cluster, and what `doctor` checks of it."""

import contextlib
import functools
import importlib.metadata
import re
import socket
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from launchers.base import Launcher, LauncherSection
from launchers.ray_token import MODE, SINCE
from launchers.shares import Tenant

_AUTO = "auto"
"""Address of the cluster that this machine is in."""


class RaySection(LauncherSection):
    """Section of the launcher on a Ray cluster."""

    EXAMPLE: ClassVar[str] = "{kind: ray, address: HOST:PORT}"

    kind: Literal["ray"]
    address: str | None = Field(
        default=None,
        min_length=1,
        description="Of a running Ray cluster, e.g. 10.0.0.1:6379 or auto. Without one the launcher "
        "starts a Ray on this machine.",
    )

    package = "ray"
    spans_nodes = True

    @property
    def is_shared(self) -> bool:
        """Return whether it is a running cluster."""
        return self.address is not None

    @property
    def place(self) -> str | None:
        """Return the cluster, unless it is that of this machine."""
        return None if self.address in (None, _AUTO) else f"ray:{self.address}"

    @property
    def meeting_host(self) -> str:
        """Return the address of the cluster's head; empty if it is not known."""
        if self.address is None:
            return super().meeting_host
        host = self.address.rpartition(":")[0].strip("[]")
        if host and "://" not in self.address:
            with contextlib.suppress(OSError):
                return str(socket.getaddrinfo(host, None)[0][4][0])
        return ""

    def security(self, environment: Mapping[str, str]) -> tuple[bool, str] | None:
        """Return whether a token protects the cluster, with advice; None without Ray."""
        try:
            version = importlib.metadata.version("ray")
        except importlib.metadata.PackageNotFoundError:
            return None  # the launcher reports it
        return protection(self.address, environment, version)

    def _launcher(self, tenant: Tenant | None) -> Callable[..., Launcher]:
        from launchers.ray_cluster import RayLauncher

        return functools.partial(RayLauncher, address=self.address, tenant=tenant)


def protection(
    address: str | None, environment: Mapping[str, str], version: str
) -> tuple[bool, str]:
    """Return whether a token protects a cluster, and a description with advice.

    Args:
        address: address of the cluster; None: autotune starts one of its own.
        environment: environment of this process.
        version: version of Ray.
    """
    mode = environment.get(MODE)
    whose = "a Ray of its own" if address is None else address
    reach = (
        "every process that reaches its ports, of every user of its machines at least, runs code"
    )
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < SINCE:
        wanted = ".".join(map(str, SINCE))
        return False, (
            f"{whose}: Ray {version} knows no tokens, and {reach} there; upgrade to {wanted}, or take "
            "launcher: local"
        )
    if mode == "token" or (mode is None and address is None):
        mode_shown = f" ({MODE}=token)" if mode else ""
        return True, f"{whose}: runs code only for holders of its token{mode_shown}"
    mend = f"unset {MODE}" if address is None else "see `ray get-auth-token --generate`"
    return False, f"{whose}: without {MODE}=token {reach} there; {mend}"
