"""A program in a pseudo terminal whose screen can be read (pyte is the terminal)."""
import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time

import pyte
import pytest

ROWS, COLUMNS = 24, 80


class Terminal:
    """`command` with stdin, stdout and stderr on a new terminal. Use as a context: what still runs then is killed."""

    def __init__(self, command, environment, columns=COLUMNS, stdout=None):
        try:
            self.master, slave = os.openpty()
        except OSError as error:
            pytest.skip(f"no pseudo terminal on this machine: {error}")
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.screen = pyte.HistoryScreen(columns, ROWS, history=20000)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""

        def take_terminal():
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            # As a shell starts a program in the foreground: whoever runs the tests (nohup, a job in the background) may ignore these.
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP):
                signal.signal(number, signal.SIG_DFL)

        self.process = subprocess.Popen([str(word) for word in command], env=environment, stdin=slave, stdout=stdout or slave, stderr=slave,
                                        start_new_session=True, preexec_fn=take_terminal)
        self.slave = slave  # kept open: else the end of the program is the end of the terminal

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        os.close(self.slave)
        os.close(self.master)

    def _read(self, seconds):
        if select.select([self.master], [], [], seconds)[0]:
            data = os.read(self.master, 1 << 16)
            self.raw += data
            self.stream.feed(data)

    def type(self, keys):
        """Reads meanwhile: a program that shows what is typed would else wait for us, and we for it."""
        data = keys.encode() if isinstance(keys, str) else keys
        os.set_blocking(self.master, False)
        end = time.monotonic() + 60
        while data:
            assert time.monotonic() < end, "the terminal takes no more keys"
            if select.select([], [self.master], [], 0.1)[1]:
                data = data[os.write(self.master, data[:1024]):]
            self._read(0)
        os.set_blocking(self.master, True)

    def wait(self, condition, seconds=60):
        """Until condition(self)."""
        end = time.monotonic() + seconds
        while not condition(self):
            assert time.monotonic() < end, "\n".join(self.lines())
            assert self.process.poll() is None or select.select([self.master], [], [], 0)[0], "\n".join(self.lines())
            self._read(0.05)
        return self

    def wait_for(self, text, seconds=60):
        """Until a line that is shown, or was, has the text."""
        return self.wait(lambda t: any(text in line for line in t.lines()), seconds)

    def lines(self):
        """All that was shown, from the first line to the last, without what is blank at the end."""
        past = ["".join(row[x].data for x in range(self.screen.columns)) for row in self.screen.history.top]
        lines = [line.rstrip() for line in past + list(self.screen.display)]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def line(self):
        """Where the cursor is."""
        return self.screen.display[self.screen.cursor.y].rstrip()

    def modes_are_back(self):
        """What a shell needs: the terminal as it was before the program."""
        return termios.tcgetattr(self.slave) == self.before

    def local_modes(self):
        return termios.tcgetattr(self.slave)[3]

    def end(self, seconds=30):
        """The exit code of a program that ends by itself."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "\n".join(self.lines())
            self._read(0.05)
        while select.select([self.master], [], [], 0)[0]:
            self._read(0)
        return self.process.returncode

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)
