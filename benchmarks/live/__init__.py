"""Released routers in front of the same simulated engines, in real time."""
