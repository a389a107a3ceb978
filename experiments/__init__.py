"""Experiments that come with the project: one YAML file per comparison. Data only; interpreter/experiments runs them."""
