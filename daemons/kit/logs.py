"""Logging as every daemon does it: one line an event, ``time LEVEL logger event key=value``, to standard error.

Never a prompt, a completion or a key. Control characters from elsewhere are made visible, so that a node's name cannot
write a false line or move the operator's cursor.
"""

from __future__ import annotations

import logging
import sys
import time

# C0 and C1 controls and the direction marks that reorder text on a screen. Tab and newline of tracebacks stay.
_VISIBLE = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (
        *range(0x00, 0x09),
        *range(0x0B, 0x20),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    )
}


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        text = record.getMessage().replace("\n", "\\n")
        line = f"{stamp}.{int(record.msecs):03d}Z {record.levelname} {record.name} {text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line.translate(_VISIBLE)


def configure(level: str = "INFO") -> None:
    """Send everything to standard error; libraries only when they warn."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("daemons", "meshnet"):
        logging.getLogger(name).setLevel(level)
