"""Logs, metrics and health. Knows neither gate nor store: the service hands in what to report."""
