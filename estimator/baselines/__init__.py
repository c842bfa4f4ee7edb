"""What others would say of the same workload: models to compare with, fitted on nothing or little."""
