"""threadpoolctl without the variable that its import sets: trials inherit the environment."""

import os

_VARIABLE = "KMP_DUPLICATE_LIB_OK"
"""https://github.com/joblib/threadpoolctl/blob/master/threadpoolctl.py"""

_was_set = _VARIABLE in os.environ

from threadpoolctl import ThreadpoolController  # noqa: E402

__all__ = ["ThreadpoolController"]

if not _was_set:
    os.environ.pop(_VARIABLE, None)
