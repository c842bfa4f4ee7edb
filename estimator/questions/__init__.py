"""Questions that need many predictions: sweeps, the best clock, fronts, comparisons, costs, explanations."""
