"""Notifies other processes on the same database of changes: a Unix datagram per commit and process with watches.

Every process with watches binds a socket in the folder `<database>-wake`. A process that commits sends one byte to each
socket. The byte has no content, so a lost one only delays the change until the next poll (`change_feed.py`).
"""

import os
import socket
from contextlib import suppress
from pathlib import Path

ADDRESS_BYTES_MAX = 100
"""Unix socket addresses have at most 104 (macOS) or 108 bytes (Linux)."""

OWN_FOLDERS = Path("/proc/self/fd")


class NotifySocket:
    """`bind` and `drain` are called on the event loop, `notify` also in the writer thread."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._folder_fd: int | None = None
        self._prefix = str(folder)
        if len(os.fsencode(folder / name)) > ADDRESS_BYTES_MAX and OWN_FOLDERS.is_dir():
            # Long paths do not fit into an address, but on Linux an open folder has a short path.
            self._folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            self._prefix = f"{OWN_FOLDERS}/{self._folder_fd}"
        self._inbox: socket.socket | None = None
        self._outbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._outbox.setblocking(False)

    def bind(self) -> socket.socket:
        """Receives notifications from now on. Also deletes sockets of dead processes, which commits would do too."""
        self.notify()
        inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            inbox.setblocking(False)
            inbox.bind(self._address(self._name))
        except OSError:
            inbox.close()
            raise
        self._inbox = inbox
        return inbox

    @property
    def is_bound(self) -> bool:
        """False also if another process deleted the socket: a cleanup of temporary files, or a notification during
        its creation."""
        return self._inbox is not None and (self._folder / self._name).exists()

    def unbind(self) -> None:
        if self._inbox is None:
            return
        self._inbox.close()
        self._inbox = None
        with suppress(OSError):
            (self._folder / self._name).unlink()

    def drain(self) -> None:
        """Discards all notifications so far: one read of the database finds all changes."""
        if self._inbox is None:
            return
        with suppress(BlockingIOError):
            while self._inbox.recv(1):
                pass

    def notify(self) -> None:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return  # there never was a watch
        for name in names:
            if name != self._name:
                self._send(name)

    def _send(self, name: str) -> None:
        try:
            self._outbox.sendto(b"!", self._address(name))
        except BlockingIOError:
            pass  # the process has not read its earlier notifications yet, so it will read the change
        except ConnectionRefusedError:
            # The process is dead. Names are never reused, so no other process has this socket.
            with suppress(OSError):
                (self._folder / name).unlink()
        except OSError:
            pass  # just deleted, or no permission: the process polls

    def _address(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def close(self) -> None:
        self.unbind()
        self._outbox.close()
        if self._folder_fd is not None:
            os.close(self._folder_fd)
            self._folder_fd = None
