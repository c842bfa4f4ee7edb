"""Whether a recording's readings come from the sensor that a calibration describes: board, driver and field make a sensor."""

from typing import Final

from collector.errors import SensorError
from collector.recordings.nvidia_smi import POWER_COLUMNS
from collector.sensing.calibration import SensorCalibration
from collector.sensing.catalogue import COLUMN_OF_FIELD

UUID_MARK: Final = "gpu-"


def check_board(calibration: SensorCalibration, board: str, where: str) -> None:
    """Raises SensorError where a log names another board than the calibration, both by UUID; gain and offset are a card's own."""
    named, known = board.strip().lower(), calibration.gpu_uuid.strip().lower()
    if named.startswith(UUID_MARK) and known.startswith(UUID_MARK) and named != known:
        raise SensorError(f"{where}: readings of board {board}, the sensor is that of board {calibration.gpu_uuid}; characterise this one")


def field_doubt(calibration: SensorCalibration, column: str) -> str:
    """What to say where a log's column is not the field that was characterised; "" where it is, and where that is not known."""
    known = COLUMN_OF_FIELD.get(calibration.field, calibration.field)
    if known not in POWER_COLUMNS or column not in POWER_COLUMNS or known == column:
        return ""
    return (
        f"the readings are {column}, the sensor was characterised by {known}: these may average differently, and errors do not hold that; "
        f"choose the column with --column, or characterise {column}"
    )
