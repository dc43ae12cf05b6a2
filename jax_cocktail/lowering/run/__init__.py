"""The room of what runs: the calls of a wrapper, the work beside them, and the stopwatch."""
