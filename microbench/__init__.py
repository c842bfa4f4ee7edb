"""The load: which kernels run, and how much work each does by construction."""
