"""Fusion stitching: which element operators are computed together (AStitch, FusionStitching / TAO)."""
