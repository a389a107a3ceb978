"""Measuring a profile: the times of a model's layers on this host, and of the links between ranks (docs/profile.md)."""
