"""Maintenance: backup and restore, `petstore check`, and copying to other backends."""
