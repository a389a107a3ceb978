"""Plans for a run that are made before it: which layers of a model form which stage, and the configuration of the run."""
