"""`collect clocks`."""

from typing import Any

import click

from collector.commands.options import CONTEXT, output_options
from collector.commands.output import Speaker, note
from estimator.options.command_line import DONE, FAILED


@click.group("clocks", context_settings=CONTEXT, no_args_is_help=False)
def clocks_command() -> None:
    """SM clocks that are held, and those that a dead process left held."""


@clocks_command.command("restore", context_settings=CONTEXT)
@output_options
def restore_command(speak: Speaker) -> int:
    """Give back every clock that a process left held when it died.

    Clocks of a living process are left alone.  This happens by itself when a board's clock is next held, and a
    guard process does it within a second or two of the death; the command is for the case that both were prevented.
    """
    from collector.devices.clock_guard import restore_left_clocks

    outcome = restore_left_clocks()
    failed = {uuid: reason for uuid, reason in outcome if reason}
    restored = [uuid for uuid, reason in outcome if not reason]
    given_back = [f"{uuid}: SM clock given back" for uuid in restored]
    speak.say({"restored": restored, "failed": failed}, given_back or ([] if failed else ["no clock was left held"]))
    for uuid, reason in failed.items():
        note(f"collect clocks restore: {uuid}: {reason}")
    return FAILED if failed else DONE


@clocks_command.command("status", context_settings=CONTEXT)
@output_options
def status_command(speak: Speaker) -> int:
    """Which boards' clocks are held, and by whom; those that the clock helper holds, too."""
    from collector.devices.clock_helper import helper_boards, helper_there
    from collector.devices.clock_record import board_lock, left_records, state_folder
    from collector.errors import ClockHelperError

    folder = state_folder()
    held: list[dict[str, Any]] = []
    for record in left_records(folder):
        with board_lock(folder, record.gpu_uuid) as free:
            held.append({"gpu_uuid": record.gpu_uuid, "pid": record.pid, "alive": not free})
    nothing = "no clock is held"
    try:
        leased = [(board.uuid, board.lease) for board in helper_boards() if board.lease] if helper_there() else []
    except ClockHelperError as error:
        leased = []
        speak.warn(str(error))
        nothing = "no clock is held that this user may know of"
    state = {True: "held by process", False: "left held by dead process"}
    lines = [f"{item['gpu_uuid']}: {state[bool(item['alive'])]} {item['pid']}" for item in held]
    for uuid, lease in leased:
        document = {"user": lease.user, "sm_clock_mhz": lease.sm_clock_mhz, "ends_in_s": lease.ends_in_s}
        held.append({"gpu_uuid": uuid, "pid": lease.pid, "alive": True, "lease": document})
        lines.append(
            f"{uuid}: {lease.sm_clock_mhz} MHz held by the clock helper for process {lease.pid} of {lease.user},"
            f" at most {lease.ends_in_s:.0f} s longer"
        )
    speak.say(held, lines or [nothing])
    return DONE
