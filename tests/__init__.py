"""Tests. Registers the helper modules so that their failed assertions show the compared values, as in a test."""

import pytest

pytest.register_assert_rewrite(
    "tests.interface", "tests.admin", "tests.console", "tests.verify", "tests.web", "harness"
)
