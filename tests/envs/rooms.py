"""Environments for tests of workers: they draw from Python's global generator, die, hang, and cannot be copied."""

import os
import random
import threading
import time

IS_HERE = False


class Rooms:
    """Go."""

    max_steps = 4

    def reset(self, seed):
        random.seed(seed)
        self.total = 0
        return f"room {random.random()} of {seed}", {}

    def step(self, action):
        if action == "die":
            os._exit(3)
        if action == "hang":
            time.sleep(100)
        print("a line on stdout")
        self.total += random.random()
        return f"{action}: {random.random()}", self.total, random.random() < 0.2, False, {}


class Locked(Rooms):
    def __init__(self):
        self.lock = threading.Lock()


class Unseeded(Rooms):
    total = 0

    def reset(self, seed):
        return f"room {os.getpid()}", {}


class Here(Rooms):
    def __init__(self):
        if not IS_HERE:  # as where a display is missing
            raise RuntimeError("no display")
