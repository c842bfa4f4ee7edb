"""Energies of instructions, transactions and links from runs of generated kernels."""
