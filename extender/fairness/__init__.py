"""Fairness, pure: policy, decayed use, entitlements, the waiting line, and who gives back when others are owed."""
