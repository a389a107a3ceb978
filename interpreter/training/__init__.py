"""Training steps: data, trainer, evaluation, comparison with one process."""
