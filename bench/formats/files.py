"""Writing a report so that a reader sees the old file or the new one, never half of it."""

from __future__ import annotations

from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write beside `path`, then rename over it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
