"""best.yaml: the recommended configuration, with its provenance.

Training jobs load this module, so it imports the standard library and PyYAML only.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FORMAT = 3
"""Version of the file's layout; grows when a reader of the old one would misread the new one."""
_PARTS: Mapping[str, tuple[type, ...]] = {
    "knobs": (dict,),
    "defaults": (dict,),
    "own": (list,),
    "unusual": (list,),
    "world_size": (int,),
    "provisional": (bool,),
    "throughput": (dict,),
    "provenance": (dict,),
    "speedup": (dict, type(None)),
    "energy": (dict, type(None)),
    "script": (dict, type(None)),
}
"""Part of the file -> types that it may have."""
_SHOWN = {dict: "a mapping", list: "a list", int: "a whole number", bool: "true or false"}
DIGEST = "knobs_digest"
"""Entry of a script's part: the digest of the knobs that its arguments were made from."""


@dataclass(frozen=True)
class BestConfig(Mapping[str, Any]):
    """Recommended configuration; a mapping from knob to value.

    Attributes:
        knobs: a value for every knob of the catalogue; of a script or a command for those of its study
            alone, as it sets all others by itself.
        world_size: ranks that it was measured with.
        throughput: value, low, high and unit of the recommended configuration; empty where energy was
            the objective.
        speedup: over the baseline with low and high; None if there was none to compare with, or
            it is the baseline.
        provenance: study, trial, environment, verdict and time.
        script: of a study over a script: its path, the knobs that it sets by itself and how, and
            those that are changed from outside; under `set_by` the knobs that other settings make
            up. Of a command it has the placeholders. None for a workload.
        unusual: knobs that differ from the defaults of PyTorch or a plain script.
        provisional: whether the study had not ended, and nothing has confirmed the configuration.
        own: knobs that the file names, as they belong to the job; None: all. The others have their
            defaults.
        energy: of a sample with low, high and unit, and `ratio` over the baseline; None where throughput
            was the objective.
    """

    knobs: dict[str, Any]
    world_size: int
    throughput: dict[str, Any]
    speedup: dict[str, float] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    unusual: tuple[str, ...] = ()
    script: dict[str, Any] | None = None
    provisional: bool = False
    own: tuple[str, ...] | None = None
    energy: dict[str, Any] | None = None

    @property
    def is_of_command(self) -> bool:
        """Return whether the study was one over a command."""
        return self.script is not None and "command" in self.script

    def ddp_arguments(self) -> dict[str, Any]:
        """Return keyword arguments for DistributedDataParallel, as the trials had them.

        Of a script they are those of its study: the others are as the script sets them.
        """
        from autotune.worker.effects.parallel import DDP_ARGUMENTS, ddp_arguments
        from search_spaces import defaults

        found = ddp_arguments({**defaults(), **self.knobs})
        if self.script is None:
            return found
        own = {argument for name, argument in DDP_ARGUMENTS.items() if name in self.knobs}
        return {argument: value for argument, value in found.items() if argument in own}

    def lost_without(self, *applied: str) -> dict[str, Any]:
        """Return settings that are lost in a script which applies only `ddp_arguments` and some knobs.

        They are all others that differ from the defaults of PyTorch or a plain script.
        """
        from autotune.worker.effects.parallel import DDP_ARGUMENTS

        known = {*applied, *DDP_ARGUMENTS}
        return {name: self.knobs[name] for name in self.unusual if name not in known}

    def __getitem__(self, name: str) -> Any:
        return self.knobs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.knobs)

    def __len__(self) -> int:
        return len(self.knobs)


def load(path: str | os.PathLike[str]) -> BestConfig:
    """Return the configuration in a best.yaml. Warn if it is provisional.

    Raises:
        OSError, ValueError: as `read` does.
    """
    found = read(path)
    if found.provisional:
        warnings.warn(
            f"{path} is provisional: study {found.provenance.get('study')} had not come to its end, and "
            "nothing has confirmed these settings",
            stacklevel=2,
        )
    return found


def read(path: str | os.PathLike[str]) -> BestConfig:
    """Return the configuration in a best.yaml without a warning.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no best.yaml, or of a newer format than this autotune knows.
    """
    try:
        content = yaml.safe_load(Path(path).read_text("utf-8"))
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: not a best.yaml: {error}") from None
    return of(content, path)


def is_best(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is meant as a best.yaml: it has its format, knobs and a provenance."""
    return mapping_in(path).keys() >= {"format", "knobs", "provenance"}


def mapping_in(path: str | os.PathLike[str]) -> dict[Any, Any]:
    """Return the mapping in a YAML file; an empty one if the file holds anything else."""
    try:
        content = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, yaml.YAMLError, ValueError, OverflowError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def of(content: Any, path: str | os.PathLike[str] = "best.yaml") -> BestConfig:
    """Return the configuration in the content of a best.yaml.

    Raises:
        ValueError: as `read` does; the message names the path.
    """
    if not isinstance(content, dict) or not isinstance(content.get("knobs"), dict):
        raise ValueError(
            f"{path}: not a best.yaml: it has no `knobs`; `autotune export` writes one"
        )
    layout = content.get("format")
    if type(layout) is not int or layout != FORMAT:
        raise ValueError(
            f"{path}: format {layout!r}, but this autotune reads {FORMAT}; export it again, or use the "
            "version of autotune that wrote it"
        )
    parts = ("world_size", "throughput", "provenance", "unusual")
    if missing := [part for part in parts if part not in content]:
        raise ValueError(f"{path}: not a best.yaml: it has no `{missing[0]}`")
    _check_parts(content, path)
    knobs = content["knobs"]
    whole = {**content.get("defaults", {}), **knobs}
    script = _unedited(content.get("script"), whole, path)
    return BestConfig(
        knobs=dict(sorted(whole.items())),
        world_size=content["world_size"],
        throughput=content["throughput"],
        speedup=content.get("speedup"),
        provenance=content["provenance"],
        unusual=tuple(content["unusual"]),
        script=script,
        provisional=content.get("provisional", False),
        own=tuple(content.get("own") or knobs),
        energy=content.get("energy"),
    )


def digest_of(knobs: Mapping[str, Any]) -> str:
    """Return a digest of values of knobs, which others do not have."""
    return hashlib.sha256(json.dumps(dict(knobs), sort_keys=True).encode()).hexdigest()


def _check_parts(content: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Check the types of the file's parts."""
    for part, types in _PARTS.items():
        if part in content and type(content[part]) not in types:
            raise ValueError(f"{path}: `{part}` must be {_SHOWN[types[0]]}, got {content[part]!r}")
    words = (content.get("script") or {}).get("arguments", {})
    if type(words) is not dict or any(type(text) is not str for text in words.values()):
        raise ValueError(f"{path}: `script.arguments` must be a mapping of texts, got {words!r}")
    for name in (*content["knobs"], *content.get("defaults", {})):
        if not isinstance(name, str):
            raise ValueError(f"{path}: `knobs` must have names of knobs, got {name!r}")


def _unedited(
    script: dict[str, Any] | None, knobs: Mapping[str, Any], path: str | os.PathLike[str]
) -> dict[str, Any] | None:
    """Return the entry of a script without its digest of the knobs."""
    if script is None or DIGEST not in script:
        return script
    if not _has_digest(knobs, script[DIGEST]):
        raise ValueError(
            f"{path}: `knobs` has been edited, and by itself that does not reach the script: change the "
            "arguments of your command instead; or `turned` and `changes` under `script` as well, and "
            f"leave out `{DIGEST}` there"
        )
    return {name: part for name, part in script.items() if name != DIGEST}


def _has_digest(knobs: Mapping[str, Any], digest: Any) -> bool:
    try:
        return bool(digest_of(knobs) == digest)
    except (TypeError, ValueError):  # a value that autotune does not write, such as a date
        return False
