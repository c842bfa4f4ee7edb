"""Block-count models from runs over several grids."""
