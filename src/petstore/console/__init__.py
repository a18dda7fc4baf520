"""The operator console: a separate web application that uses the same store and gate as the service."""
