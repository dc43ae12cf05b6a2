"""Which values share memory, and which memory the units share."""
