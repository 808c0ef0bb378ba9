"""study.yaml -> StudySpec. Every mistake names file, line, field and what is allowed."""

from autotune.spec.study import BudgetSpec, StudySpec, check, json_schema, load

__all__ = ["BudgetSpec", "StudySpec", "check", "json_schema", "load"]
