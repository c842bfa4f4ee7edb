"""Workloads × boards × clocks → columns: the only place where time and power are evaluated."""
