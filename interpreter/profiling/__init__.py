"""Measuring a profile: the times of a model's layers on this host, and of its links (docs/profile.md)."""
