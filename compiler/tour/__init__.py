"""The guided tour in the terminal: five parts, with explanations, choices, and drawings that are computed as it runs."""
