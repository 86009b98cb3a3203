"""CPU time of a server's processes, by the role of their session or by kind.

Sampled, since what a process has used is forgotten when it ends.
"""

import os
import threading

INTERVAL = 0.02


class Cpu(threading.Thread):
    """with Cpu() as cpu: ...; then cpu.seconds(kind, ...)

    A kind is a role, or the beginning of a background process's title.
    """

    def __init__(self):
        super().__init__(daemon=True)
        with open(os.path.join(os.environ['workdir'],
                               'data/postmaster.pid')) as file:
            self.postmaster = file.readline().strip()
        self.end = threading.Event()
        self.first = {}
        self.last = {}
        self.titles = {}

    def sample(self):
        with open(f'/proc/{self.postmaster}/task/{self.postmaster}/children'
                  ) as file:
            pids = file.read().split()
        for pid in pids:
            try:
                if pid not in self.titles:
                    with open(f'/proc/{pid}/cmdline') as file:
                        title = file.read().replace('\0', ' ').strip()
                    if not title.startswith('postgres: '):
                        continue        # just forked
                    self.titles[pid] = title.removeprefix('postgres: ')
                with open(f'/proc/{pid}/schedstat') as file:
                    used = int(file.read().split()[0]) / 1e9
            except (FileNotFoundError, ProcessLookupError):
                continue
            self.last[pid] = used

    def run(self):
        while not self.end.wait(INTERVAL):
            self.sample()

    def __enter__(self):
        self.sample()
        self.first = dict(self.last)
        self.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.join()
        self.sample()

    def seconds(self, *kinds):
        return sum(used - self.first.get(pid, 0)
                   for pid, used in self.last.items()
                   if self.titles[pid].startswith(kinds))
