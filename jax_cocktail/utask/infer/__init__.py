"""Type inference: the result types of operators, and checks of operands and attributes."""
