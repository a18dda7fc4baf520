"""The HTTP API: the request pipeline, and adapters for Petstore's own server and for ASGI servers."""
