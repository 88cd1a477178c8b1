"""How long a service that was killed takes to be whole again, and what its snapshots cost."""
