"""The HTTP/1.1 server: connections, messages, worker processes and TLS. Independent of the application."""
