"""Maintenance commands: backup, restore, `petstore check`, and copying data to other backends."""
