"""The HTTP/1.1 server: connections, messages, worker processes and TLS. It does not depend on the application."""
