"""best.yaml itself, as YAML or JSON: nothing is left unsaid."""

from autotune.export import writing
from autotune.export.best import BestConfig
from autotune.export.formats.telling import Said, as_json


def yaml(best: BestConfig) -> Said:
    """What `autotune.load` and `autotune run` read."""
    return Said(writing.as_text(writing.document_of(best)), {})


def json(best: BestConfig) -> Said:
    """The same content for programs."""
    return Said(as_json(writing.document_of(best)), {})
