"""Loop distribution: work on no recurrence leaves the loop."""
