"""Logs, metrics and health tracking. This package does not depend on the gate or the store."""
