"""What is known of a right program without running it: times, memory, graph, report."""
