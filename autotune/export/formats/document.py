"""best.yaml itself, as YAML or JSON: nothing is left unsaid. JSON has every knob in one place."""

from autotune.export import writing
from autotune.export.best import BestConfig
from autotune.export.formats.telling import Said, as_json


def yaml(best: BestConfig) -> Said:
    """Return what `autotune.load` and `autotune run` read."""
    return Said(writing.as_text(writing.document_of(best)), {})


def json(best: BestConfig) -> Said:
    """Return the same content for programs."""
    content = writing.document_of(best)
    content.pop("own", None)
    return Said(as_json(content), {})
