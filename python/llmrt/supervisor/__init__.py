"""The process that the user starts: it builds the topology, starts the others, watches and stops them."""
