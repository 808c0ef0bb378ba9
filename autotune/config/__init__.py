"""study.yaml -> StudySpec. Every mistake names file, line, field and what is allowed."""

from autotune.config.sections import BudgetSpec
from autotune.config.study import StudySpec, check, identified, json_schema, load

__all__ = ["BudgetSpec", "StudySpec", "check", "identified", "json_schema", "load"]
