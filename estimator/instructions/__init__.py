"""Energy per instruction and per transaction (GPUJoule): tables, counts, links, several modules."""
