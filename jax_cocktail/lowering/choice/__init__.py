"""The room that chooses between our candidates and stock XLA, and stores what was chosen."""
