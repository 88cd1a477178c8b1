"""Many sites under one sparse index, simulated: what the digests cost, and what they lose against one exact index."""
