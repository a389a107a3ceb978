"""Training: optimizer, trainer, evaluation, checkpoints, exports, comparison with one process."""
