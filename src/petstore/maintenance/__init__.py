"""Maintenance of an installation: backup and restore, the health check, and copying to other backends."""
