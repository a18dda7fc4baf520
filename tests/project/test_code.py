"""Rules that apply to all code."""

import importlib
import inspect
import pkgutil

import petstore

ANCESTORS_MAX = 2


def test_no_class_has_many_ancestors_of_ours() -> None:
    """Classes use composition, so that a method is easy to find. Only the error tree may be deeper."""
    modules = [found.name for found in pkgutil.walk_packages(petstore.__path__, "petstore.")]
    deep = []
    for name in modules:
        if name.endswith("__main__"):
            continue
        for _, kind in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            ancestors = [each for each in kind.__mro__[1:] if each.__module__.startswith("petstore")]
            if len(ancestors) > ANCESTORS_MAX and not issubclass(kind, BaseException):
                deep.append(f"{kind.__module__}.{kind.__qualname__}: {len(ancestors)}")
    assert len(modules) > 50 and deep == []
