"""The scheduler process: links, scheduler and executor in one loop."""
