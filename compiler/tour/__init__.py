"""The guided tour in the terminal: five parts, each with explanations, choices, and drawings that are computed as it runs."""
