"""Tables and pictures of timelines, and files for Perfetto."""
