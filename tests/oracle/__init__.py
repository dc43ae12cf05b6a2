"""The mesh interpreter: runs planned programs unit by unit and finds accesses that no barrier orders."""
