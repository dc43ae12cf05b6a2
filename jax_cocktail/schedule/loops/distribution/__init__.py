"""Loop distribution: what a recurrence does not need leaves its loop."""
