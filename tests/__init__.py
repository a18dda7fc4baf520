"""Tests. A failed assertion in these helpers shows the values that it compared, as in a test."""

import pytest

pytest.register_assert_rewrite(
    "tests.interface", "tests.admin", "tests.console", "tests.verify", "tests.web", "harness"
)
