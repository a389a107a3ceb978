"""Training: data, trainer, evaluation, comparison with one process."""
