"""What the handlers in Python have in common: the library of a driver, errors, programs, execution."""
