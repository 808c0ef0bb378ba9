"""Writing of best.yaml: the recommendation of a study, with its provenance."""

import contextlib
import dataclasses
import hashlib
import math
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from autotune import paths
from autotune.analysis.verdict import Verdict
from autotune.analysis.wording import Terms
from autotune.errors import BadInput
from autotune.export.best import DIGEST, FORMAT, BestConfig, digest_of, is_best, mapping_in
from autotune.measurement.estimate import Ratio
from autotune.worker.files import make_private
from search_spaces import CATALOGUE

_BY_ITSELF = "# All that is not under knobs is as the script sets it.\n"
_OF_A_SCRIPT = "Start your job with it: autotune run FILE -- YOUR COMMAND"
_OF_A_COMMAND = "Start the command with it: autotune run FILE"
_OF_A_WORKLOAD = "Load it with autotune.load(...)."
_UNUSUAL = "# Names of knobs that differ from the defaults of PyTorch or of a plain script:"
_WIDTH = 100
"""Width of a line that holds several knobs, in characters."""
_NAME_CHARACTERS = 40
"""Characters of a file's name in that of a temporary file beside it."""
_HEAD_BYTES = 512
"""Bytes at the beginning of a file that tell its kind: longer than each mark of a kind."""


def document(
    *,
    verdict: Verdict,
    text: str,
    unit: str,
    world_size: int,
    environment: Mapping[str, Any],
    created: str,
    script: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of best.yaml for a verdict that recommends something.

    Args:
        text: the verdict in words.
        world_size: ranks that it was measured with.
        created: time, ISO 8601.
        script: how a script comes by the configuration, see export.tuned_job; None for a workload.
    """
    assert verdict.throughput is not None and verdict.knobs is not None
    content = {
        "format": FORMAT,
        "provisional": verdict.provisional,
        "knobs": dict(verdict.knobs),
        "world_size": world_size,
        **_gain(verdict, unit),
        "provenance": {
            "study": verdict.study,
            "trial": verdict.trial,
            "verdict": text,
            "rounds": verdict.rounds,
            **_memory(verdict),
            "created": created,
            "environment": dict(environment),
        },
    }
    return of_this_version(content if script is None else content | {"script": dict(script)})


def _gain(verdict: Verdict, unit: str) -> dict[str, Any]:
    """Return rate and ratio over the baseline: as throughput and speed-up, or as energy of a sample.

    There is no ratio where the baseline is kept, or could not be compared with.
    """
    terms, rate, gain = Terms.of(unit), verdict.throughput, verdict.speedup
    assert rate is not None
    kept = gain is None or verdict.knobs == verdict.baseline_knobs
    ratio = None if gain is None or kept else _rounded(terms.said(gain))
    if terms.of_energy:
        energy = {**_rounded(rate.inverse), "unit": "J/sample"}
        return {"throughput": {}, "energy": energy | ({"ratio": ratio} if ratio else {})}
    found = {"throughput": {**_rounded(rate), "unit": unit}}
    return found | ({"speedup": ratio} if ratio else {})


def document_of(best: BestConfig) -> dict[str, Any]:
    """Return the content of the file that a configuration was read from."""
    content = {"format": FORMAT, **dataclasses.asdict(best)}
    if best.script is None:
        del content["script"]
    if best.own is None:
        del content["own"]
    if best.speedup is None:
        del content["speedup"]
    if best.energy is None:
        del content["energy"]
    return of_this_version(content)


def of_this_version(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recommendation with entries that files of earlier versions lack."""
    unusual = [
        name
        for name, value in content["knobs"].items()
        if name not in CATALOGUE or value != CATALOGUE[name].default
    ]
    found = {**content, "format": FORMAT, "unusual": unusual}
    script = content.get("script")
    if script and "command" not in script:  # whose knobs do not reach it by themselves
        found["script"] = {**script, DIGEST: digest_of(content["knobs"])}
    return found


def as_text(content: Mapping[str, Any]) -> str:
    """Return the text of the file.

    Under `knobs` are those of the job, and those that differ from their defaults. Of a workload all
    others stand together at the end, so that the file means the same under another version; a script
    sets them by itself.
    """
    named = {*content.get("own", content["knobs"]), *content.get("unusual", ())}
    knobs: dict[str, Any] = content["knobs"]
    own = {name: value for name, value in knobs.items() if name in named}
    others = {name: value for name, value in knobs.items() if name not in named}
    shown = {name: part for name, part in content.items() if name != "own"}
    entry = content.get("script")
    of_entry = _OF_A_COMMAND if entry and "command" in entry else _OF_A_SCRIPT
    use = of_entry if entry else _OF_A_WORKLOAD
    lines = _yaml({**shown, "knobs": own}).replace("\nunusual:", f"\n{_UNUSUAL}\nunusual:")
    text = f"# Found by autotune. {use}\n{lines}"
    if others:
        return f"{text}# Of no use to this job:\ndefaults: {_in_line(others)}"
    return text + (_BY_ITSELF if entry else "")


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)


def _in_line(knobs: Mapping[str, Any]) -> str:
    return yaml.safe_dump(
        dict(knobs), sort_keys=False, default_flow_style=True, allow_unicode=True, width=_WIDTH
    )


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write best.yaml. A reader of the path sees the old file or the new one, never a part."""
    write_text(path, as_text(content))


def write_text(path: Path, text: str) -> None:
    """Write a text to a file, whole or not at all, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all.

    A symbolic link stays, and what it leads to is written. A file that is there keeps its mode.
    """
    path = Path(os.path.realpath(path))
    descriptor, temporary = _beside(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _beside(path: Path) -> tuple[int, Path]:
    """Open a new file beside a path, with the mode that the file there has, or a new one would have.

    Returns:
        Its descriptor and its path.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        mode = None
    temporary = path.with_name(f".{path.name[:_NAME_CHARACTERS]}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600)
    if mode is not None:
        os.fchmod(descriptor, mode)
    return descriptor, temporary


def not_ours(path: Path) -> str:
    """Return why the file at a path must not be replaced; empty: there is none, or autotune wrote it."""
    if not path.exists() or is_best(path):
        return ""
    return (
        f"{path} exists and is no best.yaml of autotune's, so it is not replaced: name another file, "
        "or move it away"
    )


def refuse_foreign(path: Path, kind: str, marks: tuple[bytes, ...]) -> None:
    """Refuse to replace a file that does not begin as the files of a kind do; an empty one may go.

    Args:
        kind: what autotune writes there, such as "page".
        marks: beginnings of files of that kind.

    Raises:
        BadInput: another file is there.
    """
    head = _head(path).strip()
    if head and not head.startswith(marks):
        raise BadInput(f"{path} exists and is no {kind} of autotune; name another file")


def refuse_replacing(path: Path, text: str = "") -> None:
    """Refuse to replace a file that no export has written; one that is empty, or has this text, may go.

    Raises:
        BadInput: another file is there.
    """
    if _head(path).strip() and not _is_export(path, text) and (refused := not_ours(path)):
        raise BadInput(refused)


def note(path: Path, text: str) -> None:
    """Note beside a file that an export has written this text there, so that another may replace it."""
    notes = paths.exports(path.parent)
    with contextlib.suppress(OSError):
        make_private(notes.parent)
        with notes.open("a") as file:
            file.write(f"{_noted(text.encode())}\n")


def _is_export(path: Path, text: str) -> bool:
    """Return whether a file is as an export has left it, or has this text."""
    try:
        known = [_noted(text.encode()), *paths.exports(path.parent).read_text().split()]
    except OSError:
        known = [_noted(text.encode())]
    size = f"{path.stat().st_size}-"
    return any(one.startswith(size) for one in known) and _noted(path.read_bytes()) in known


def _noted(content: bytes) -> str:
    """Return size and digest of the content of a file."""
    return f"{len(content)}-{hashlib.sha256(content).hexdigest()}"


def _head(path: Path) -> bytes:
    """Return how a file begins; empty: there is none."""
    try:
        if not path.exists():
            return b""
        if not path.is_file():
            raise BadInput(f"{path} exists and is no file; name another one, or - to print")
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None


def is_of_another(path: Path, study: str) -> bool:
    """Return whether there is a file, and it is no best.yaml of this study."""
    return path.exists() and not is_of(path, study)


def is_of(path: Path, study: str) -> bool:
    """Return whether there is a best.yaml of this study, edited or not."""
    provenance = mapping_in(path).get("provenance")
    return isinstance(provenance, dict) and bool(provenance.get("study") == study)


def _memory(verdict: Verdict) -> dict[str, Any]:
    """Return the bytes of a rank, as far as they are known."""
    memory = verdict.memory
    if memory is None or not memory.peak:
        return {}
    known = {"peak": memory.peak, "longest_samples": memory.longest, "limit": memory.limit}
    return {"memory_bytes": {name: value for name, value in known.items() if value is not None}}


def _rounded(interval: Ratio) -> dict[str, float | None]:
    """Round to six significant digits, more than any measurement means; None: without bound."""
    return {
        name: float(f"{value:.6g}") if math.isfinite(value) else None
        for name, value in vars(interval).items()
    }
