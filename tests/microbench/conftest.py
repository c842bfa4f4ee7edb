"""The assembler and the disassembler, where they are installed."""

import pytest

from microbench.errors import CompileError
from microbench.toolchain.compile import find_toolchain


@pytest.fixture(scope="session")
def toolchain():
    """ptxas and nvdisasm, from the wheels of the extra `ptx` or from the PATH."""
    try:
        return find_toolchain()
    except CompileError as error:
        pytest.skip(str(error))
