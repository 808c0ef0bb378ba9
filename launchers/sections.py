"""Sections of a study file for launchers: which one a study names, and how it is read."""

import contextlib
import functools
import importlib.metadata
import os
import re
import socket
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Discriminator, Field, Tag

from autotune.errors import BadInput
from launchers.base import Launcher, LauncherSection
from launchers.ray_token import MODE, SINCE
from launchers.shares import Tenant
from launchers.slurm_allocation import JOB, OUTSIDE, refuse_login_node

AUTO = "auto"
"""Address of the cluster that this machine is in."""
CLUSTER = "SLURM_CLUSTER_NAME"
"""Variable with the name of the Slurm cluster, in its jobs."""
_MOST_PORT = 65_535
_UNKNOWN = (socket.EAI_NONAME, socket.EAI_NODATA)
"""Errors of name servers that know no such name."""


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
        return None if self.address in (None, AUTO) else f"ray:{self.address}"

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

    def file_problems(self) -> dict[str, str]:
        """Return the mistake in the address."""
        wrong = "" if self.address in (None, AUTO) else misspelt(str(self.address))
        return {"address": wrong} if wrong else {}

    def security(self, environment: Mapping[str, str]) -> tuple[bool, str] | None:
        """Return whether a token protects the cluster, with advice; None without Ray."""
        try:
            version = importlib.metadata.version("ray")
        except importlib.metadata.PackageNotFoundError:
            return None  # the launcher reports it
        return protection(self.address, environment, version)

    def _launcher(self, tenant: Tenant | None) -> Callable[..., Launcher]:
        from launchers.ray_cluster import RayLauncher

        if self.address is None:
            refuse_login_node()
        return functools.partial(RayLauncher, address=self.address, tenant=tenant)


def misspelt(address: str) -> str:
    """Return why a text is no address of a Ray cluster; empty if it is one."""
    host, _, port = address.rpartition(":")
    digits = len(port) if port.isascii() and port.isdecimal() else 0
    if not (0 < digits <= len(str(_MOST_PORT)) and 0 < int(port) <= _MOST_PORT):
        return f"{address} must be HOST:PORT with a port from 1 to {_MOST_PORT}, as 10.0.0.1:6379"
    if "://" in address or not host.strip("[]"):
        return f"{address} must be HOST:PORT, as 10.0.0.1:6379"
    return ""


def wrong_address(address: str) -> str:
    """Return why no Ray cluster can be at an address; empty if one may.

    A name server that does not answer says nothing about a name.
    """
    if wrong := misspelt(address):
        return wrong
    name = address.rpartition(":")[0].strip("[]")
    try:
        socket.getaddrinfo(name, None)
    except UnicodeError:
        return f"{name} is no name of a machine"
    except socket.gaierror as error:
        if error.errno in _UNKNOWN:
            return f"there is no machine {name} ({error.strerror}); an address will do as well"
    return ""


def protection(
    address: str | None, environment: Mapping[str, str], version: str
) -> tuple[bool, str]:
    """Return whether a token protects a cluster, and a description with advice.

    Args:
        address: address of the cluster; None: autotune starts one of its own.
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


class LocalSection(LauncherSection):
    """Section of the launcher on this machine."""

    kind: Literal["local"]

    def _launcher(self, tenant: Tenant | None) -> Callable[..., Launcher]:
        from launchers.local import LocalLauncher

        refuse_login_node()
        return LocalLauncher


class SlurmSection(LauncherSection):
    """Section of the launcher inside an allocation of Slurm."""

    kind: Literal["slurm"]

    spans_nodes = True

    @property
    def is_shared(self) -> bool:
        """Return True: another allocation may have other devices."""
        return True

    @property
    def place(self) -> str:
        """Return the cluster: a job may go on in an allocation of other nodes.

        Raises:
            BadInput: this process is in no allocation.
        """
        if JOB not in os.environ:
            raise BadInput(OUTSIDE)
        return f"slurm:{os.environ.get(CLUSTER, '')}"

    @property
    def meeting_host(self) -> str:
        """Return an empty text: ranks meet on the first node that a slot takes."""
        return ""

    def _launcher(self, tenant: Tenant | None) -> Callable[..., Launcher]:
        from launchers.slurm import SlurmLauncher

        return SlurmLauncher


Section = LocalSection | RaySection | SlurmSection
KINDS: Mapping[str, type[Section]] = {
    get_args(section.model_fields["kind"].annotation)[0]: section for section in get_args(Section)
}
"""Section of each launcher, by the word that a study file has for it."""
PLACES = tuple(name for name, kind in KINDS.items() if kind.place is not LauncherSection.place)
"""Launchers whose clusters have queues of their own."""
PACKAGES = {kind.package: f"launcher: {name}" for name, kind in KINDS.items() if kind.package}
"""Package that only one launcher needs -> how a study asks for that launcher."""
SPANNING = " or ".join(f"`launcher: {name}`" for name, kind in KINDS.items() if kind.spans_nodes)
"""Launchers that spread a trial over several nodes, in words."""


def for_several_nodes(environment: Mapping[str, str]) -> str:
    """Return the line of a study file for trials on several nodes.

    Args:
        environment: of this process; inside an allocation of Slurm its nodes are meant.
    """
    if JOB in environment:
        return "launcher: slurm   # on the nodes of the allocation that it is started in"
    return (
        f"launcher: ray   # of several nodes; a running cluster: {RaySection.EXAMPLE}; Slurm: slurm"
    )


def section_of(kind: str, **fields: Any) -> Section:
    """Return the section of a launcher, with these fields."""
    return KINDS[kind].model_validate({"kind": kind, **fields})


def as_section(given: Any) -> Any:
    """Return the section of a launcher for its name alone; anything else unchanged.

    Raises:
        ValueError: it is of no launcher.
    """
    section = {"kind": given} if isinstance(given, str) else given
    kind = section.get("kind") if isinstance(section, Mapping) else None
    if isinstance(section, LauncherSection) or (isinstance(kind, str) and kind in KINDS):
        return section
    raise ValueError(f"must be {' or '.join(KINDS)}, or a mapping with one of them as `kind`")


def tag_of(section: Any) -> str:
    """Return the tag of a section's class in pydantic's locations, see `AnyLauncher`."""
    kind = section["kind"] if isinstance(section, Mapping) else section.kind
    return f"[{KINDS[kind].__name__}]"


AnyLauncher = Annotated[
    Annotated[LocalSection, Tag("[LocalSection]")]
    | Annotated[RaySection, Tag("[RaySection]")]
    | Annotated[SlurmSection, Tag("[SlurmSection]")],
    Discriminator(tag_of),
]
"""The launcher of a study file."""
