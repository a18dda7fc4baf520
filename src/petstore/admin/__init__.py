"""What operators do, shared by the command line and the console."""
