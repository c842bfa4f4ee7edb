"""A served language model: its architecture, weights and parallelism, and the operators of a step of a serving engine.

Everything is read from the model's config.json; PyTorch is not needed.
"""
