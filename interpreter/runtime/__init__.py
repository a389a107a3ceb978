"""Executing one rank's instruction stream: stages, split backward, store, messages, parameters."""
