"""What every Python process of a server does at its start: its configuration, its parent, its signals."""
