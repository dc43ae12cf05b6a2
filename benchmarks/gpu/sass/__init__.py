"""A latency laboratory: emulates one block of a kernel's machine code, and counts cycles."""
