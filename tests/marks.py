"""Markers that several test files use."""

import os

import pytest

only_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
