"""The actions of operators, shared by the command line and the console."""
