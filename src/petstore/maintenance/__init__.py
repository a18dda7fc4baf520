"""Work on a whole installation: backup and restore, the health check, the copy to other backends."""
