"""The library: one .sched file per scheme. Data only; compiler.library finds the files."""
