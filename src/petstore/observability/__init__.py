"""Logs, metrics and health. This package knows neither gate nor store: the service hands in what to report."""
