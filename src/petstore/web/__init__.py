"""The HTTP interface: one pipeline, two adapters."""
