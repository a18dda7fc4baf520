"""Operator actions, shared by the command line and the console."""
