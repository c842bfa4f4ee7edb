"""Energy of parts of a Python program: `measure`, on boards whose readings are taken in the background."""
