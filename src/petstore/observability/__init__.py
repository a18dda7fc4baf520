"""Logs, metrics and health. This package does not depend on the gate or the store."""
