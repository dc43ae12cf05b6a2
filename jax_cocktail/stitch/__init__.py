"""Fusion stitching: groups of element operators computed together (AStitch, FusionStitching / TAO)."""
