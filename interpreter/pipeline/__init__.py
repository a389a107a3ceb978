"""The runtime in anybody's training loop: a model, a schedule and a loss become a pipeline whose `step` computes gradients."""
