"""Commands that write files of the project: figures and benchmarks."""
