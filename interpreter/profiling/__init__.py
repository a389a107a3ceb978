"""Measuring a profile: the times of a model's layers on this machine, and of its links (docs/profile.md)."""
