"""Training: trainer, evaluation, comparison with one process."""
