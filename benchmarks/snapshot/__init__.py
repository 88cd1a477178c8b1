"""The time that a service that was killed takes to be whole again, and the cost of its snapshots."""
