"""Times of day. Full quarters of an hour are one kind, other minutes another; seconds other than 0 change, too."""

from cloister.obfuscation.candidates.cells import Slot, block

BLOCK = 16  # neighbours in time: both kinds' counts in twelve hours are multiples of it
_SECONDS = tuple(f"{second:02}" for second in range(1, 60))


def clock_slots(text: str, twelve: bool) -> list[Slot] | None:
    """Slots of "9:30", "21:07", "21:07:55". None for a time that no clock shows."""
    hour, minute, *second = text.split(":")
    padded = len(hour) == 2
    hours = [12, *range(1, 12)] if twelve else [*range(24)]
    full = int(minute) % 15 == 0
    minutes = [f"{each:02}" for each in range(60) if (each % 15 == 0) == full]
    times = [f"{each:02}:{other}" if padded else f"{each}:{other}" for each in hours for other in minutes]
    if (at := f"{hour}:{minute}") not in times or (second and int(second[0]) > 59):
        return None
    times = [each for each in times if len(each) == len(at)]
    place = times.index(at)
    start = place // BLOCK * BLOCK
    if start + BLOCK > len(times):
        return None
    slots = [Slot(tuple(times[start : start + BLOCK]), place - start)]
    if second and second[0] != "00":
        slots.append(block(_SECONDS, _SECONDS.index(second[0])))
    elif second:
        slots.append(Slot(("00",), 0, free=True))
    return slots
