"""study.yaml -> StudySpec. Every mistake names file, line, field and what is allowed."""

from autotune.spec.study import BudgetSpec, StudySpec, check, identified, json_schema, load

__all__ = ["BudgetSpec", "StudySpec", "check", "identified", "json_schema", "load"]
