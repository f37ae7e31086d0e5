"""The language: every path, header, struct, frame and error shape that crosses a process border. No IO here."""
