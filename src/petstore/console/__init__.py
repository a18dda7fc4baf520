"""The operator's console: a web application of its own, over the same store and gate as the service."""
