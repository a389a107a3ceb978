"""The command chimerac."""
