"""Products: the order of their right factors, and which of them are one."""
