"""docs/results/gpu-NAME.md, from the parts that were measured."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

Part = dict[str, Any]


def page(name: str, parts: dict[str, Part]) -> str:
    """All parts in the order in which they are given."""
    lines = [
        f"# {name}",
        "",
        "Written by `python benchmarks/gpu.py`; all figures are in the .json of",
    ]
    lines += [
        "that name. Ratios carry their 95 % interval and stand beside that of equals (A/A).",
        "",
    ]
    knobs = {title: part for title, part in parts.items() if title.startswith("knobs on ")}
    for title, part in parts.items():
        if title not in knobs:
            lines += [f"## {title[0].upper()}{title[1:]}", "", *_body(part), ""]
    if knobs:
        lines += ["## Knobs", "", *_knobs(knobs), ""]
    return "\n".join(lines)


def _body(part: Part) -> Iterator[str]:
    if "error" in part:
        yield f"Failed: {part['error'].splitlines()[-1]}"
        return
    for name, value in part["figures"].items():
        if name not in ("runs", "all", "settings", "unfinished"):
            yield f"- {name}: {_shown(value)}"
    if part["figures"].get("unfinished"):
        yield "- its time was over before all rounds were made"


def _knobs(parts: dict[str, Part]) -> Iterator[str]:
    yield "| value | workload | gain | A/A | samples/s | p95 / p50 | compile s | GiB | MHz | W |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    left_out: dict[str, str] = {}
    for title, part in parts.items():
        if "error" in part:
            yield f"| {title} | | failed: {part['error'].splitlines()[-1]} | | | | | | | |"
            continue
        figures, place = part["figures"], title.removeprefix("knobs on ").partition(":")[0]
        left_out |= figures["left_out"]
        again = _shown(figures["gains"].get("default again"))
        for name, gain in figures["gains"].items():
            if name != "default again":
                runs = figures["runs"][name]
                yield f"| {name} | {place} | {_gain(gain, runs)} | {again} | {_runs(runs)} |"
    yield ""
    yield from (f"- left out: {reason}" for reason in dict.fromkeys(left_out.values()))


def _gain(gain: Part | None, runs: list[Part]) -> str:
    failed = [run for run in runs if not run["rate"]]
    return f"{failed[0]['state']}: {failed[0]['cause']}" if failed else _shown(gain)


def _runs(runs: list[Part]) -> str:
    last = runs[-1]
    spread = last["step_p95"] / last["step_p50"] if last["step_p50"] else None
    cells: Iterable[Any] = (
        last["rate"],
        spread,
        last["compile_seconds"],
        last["peak_bytes"] / 2**30,
        last["clock_mhz"],
        last["power_watts"],
    )
    return " | ".join(map(_shown, cells))


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, dict):
        if set(value) == {"value", "low", "high"}:
            return f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"
        if "sentence" in value:
            return str(value["sentence"])
        return "; ".join(
            f"{name} {_shown(found)}" for name, found in value.items() if found is not None
        )
    return value if isinstance(value, str) else json.dumps(value)
