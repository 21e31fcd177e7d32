"""How processes on one database tell each other that something changed: a Unix datagram, one per commit and watcher.

Every process that watches binds a socket in the folder `<database>-wake`; whoever commits sends one byte to each. The
byte says "look", nothing more, so a lost one costs only the time until the next patrol (`follower.py`).
"""

import os
import socket
from contextlib import suppress
from pathlib import Path

ADDRESS_BYTES_MAX = 100
"""Unix socket addresses end at 104 (macOS) or 108 bytes (Linux)."""

OWN_FOLDERS = Path("/proc/self/fd")


class Mailbox:
    """`bind` and `empty` are the event loop's; `poke` is the writer's thread's."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._folder_fd: int | None = None
        self._prefix = str(folder)
        if len(os.fsencode(folder / name)) > ADDRESS_BYTES_MAX and OWN_FOLDERS.is_dir():
            # Long paths do not fit into an address, but Linux reaches any open folder through a short one.
            self._folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            self._prefix = f"{OWN_FOLDERS}/{self._folder_fd}"
        self._inbox: socket.socket | None = None
        self._outbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._outbox.setblocking(False)

    def bind(self) -> socket.socket:
        """Be told from now on. The dead are cleared away, so that they do not pile up where nobody commits."""
        self.poke()
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
        """False also when somebody removed the socket: a sweep of temporary files, or a poke just as it was made."""
        return self._inbox is not None and (self._folder / self._name).exists()

    def unbind(self) -> None:
        if self._inbox is None:
            return
        self._inbox.close()
        self._inbox = None
        with suppress(OSError):
            (self._folder / self._name).unlink()

    def empty(self) -> None:
        """All pokes so far mean one look."""
        if self._inbox is None:
            return
        with suppress(BlockingIOError):
            while self._inbox.recv(1):
                pass

    def poke(self) -> None:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return  # nobody has ever watched
        for name in names:
            if name != self._name:
                self._poke(name)

    def _poke(self, name: str) -> None:
        try:
            self._outbox.sendto(b"!", self._address(name))
        except BlockingIOError:
            pass  # it has not read its earlier pokes yet: it will look
        except ConnectionRefusedError:
            # Its process is gone. Names are never used again, so this is nobody else's.
            with suppress(OSError):
                (self._folder / name).unlink()
        except OSError:
            pass  # gone just now, or not for us: its patrol finds the change

    def _address(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def close(self) -> None:
        self.unbind()
        self._outbox.close()
        if self._folder_fd is not None:
            os.close(self._folder_fd)
            self._folder_fd = None
