"""Decides what each step computes: requests, policies, budget, plans. Imports neither torch nor the runner."""
