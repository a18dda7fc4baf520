"""The HTTP API: the request pipeline, its operations, and the documents and pages for people."""
