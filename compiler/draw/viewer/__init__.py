"""The viewer: one HTML file with the timeline of a program, which needs no server and no network."""
