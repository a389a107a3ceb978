"""The viewer: an HTML file with the timelines of one or several programs, which needs no server and no network."""
