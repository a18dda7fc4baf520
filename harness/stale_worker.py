"""`python -m harness.stale_worker FILE command …`: runs petstore with a planted fault.

The first worker that lists animals never updates the pages in its cache. It creates FILE.
"""

import sys
from functools import cache
from pathlib import Path

from harness.programs import run
from petstore.gate import CatalogueVersion
from petstore.web.page_cache import PageCache, Rendered
from petstore.web.requests import ListQuery

_get, _put = PageCache.get, PageCache.put


@cache
def _is_stale() -> bool:
    try:
        Path(sys.argv[1]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _kept(cache: PageCache, version: CatalogueVersion) -> CatalogueVersion:
    began = cache._version != (-1, -1)
    return cache._version if began and _is_stale() else version


def get(self: PageCache, query: ListQuery, version: CatalogueVersion, now: float) -> Rendered | None:
    return _get(self, query, _kept(self, version), now)


def put(self: PageCache, query: ListQuery, rendered: Rendered, version: CatalogueVersion) -> None:
    _put(self, query, rendered, _kept(self, version))


if __name__ == "__main__":
    PageCache.get, PageCache.put = get, put  # type: ignore[method-assign]
    run(["harness.stale_worker", sys.argv[1]], sys.argv[2:])
