"""The HTTP API: the request pipeline, and adapters for our server and for ASGI."""
