"""The timeline of a traced call: read from rings of stamps, printed as a table, written for Perfetto."""
