"""PTX text, the assembler that compiles it, and the inspection of the result."""
