"""Comparison of our policy with fixed rules and bounds, on tiers, pools and pulls in virtual time: see README.md."""
