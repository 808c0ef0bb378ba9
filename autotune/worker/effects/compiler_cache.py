"""Keys of the compiler's caches on disk, which lack some settings that compiled code depends on."""

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any


@contextmanager
def kept_apart(setting: str, within: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter a context of torch; what is compiled inside is not taken from a run without its setting.

    Args:
        setting: text that says what the context sets.
    """
    config, name, value = _key(setting)
    before = getattr(config, name)
    setattr(config, name, value)
    try:
        with within:
            yield
    finally:
        setattr(config, name, before)


def _key(setting: str) -> tuple[Any, str, Any]:
    """Return the module, name and value of the option of torch that keeps compiled code apart."""
    config = importlib.import_module("torch.compiler.config")
    if hasattr(config, "cache_key_tag"):
        return config, "cache_key_tag", f"{config.cache_key_tag} {setting}".strip()
    # Older versions have no tag: graphs are traced anew, and the code of equal ones is found.
    return importlib.import_module("torch._functorch.config"), "enable_autograd_cache", False
