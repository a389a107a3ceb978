"""What executes one rank's instruction stream: stages, split backward, values, messages, parameters."""
