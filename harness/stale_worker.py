"""`petstore` with a planted fault: the first worker that lists animals never updates the pages in its cache."""

import multiprocessing
import os

from petstore.cli import main
from petstore.gate import CatalogueVersion
from petstore.web.page_cache import PageCache, Rendered
from petstore.web.requests import ListQuery

_stale = multiprocessing.Value("i", 0)  # the process id of the stale worker, shared by all forked workers
_get, _put = PageCache.get, PageCache.put


def _is_stale() -> bool:
    with _stale.get_lock():
        _stale.value = _stale.value or os.getpid()
    return bool(_stale.value == os.getpid())


def _kept(cache: PageCache, version: CatalogueVersion) -> CatalogueVersion:
    began = cache._version != (-1, -1)
    return cache._version if began and _is_stale() else version


def get(self: PageCache, query: ListQuery, version: CatalogueVersion, now: float) -> Rendered | None:
    return _get(self, query, _kept(self, version), now)


def put(self: PageCache, query: ListQuery, rendered: Rendered, version: CatalogueVersion) -> None:
    _put(self, query, rendered, _kept(self, version))


if __name__ == "__main__":
    PageCache.get, PageCache.put = get, put  # type: ignore[method-assign]
    main()
