"""The C core and its build."""
