"""PTX text, the assembler that compiles it, and what the disassembler says of the result."""
