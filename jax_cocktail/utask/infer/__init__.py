"""The types of an operator's results, and what is wrong with its operands."""
