"""A shuffle sort: each of HOSTS workers sends every other one the keys of its range, then sorts what it has.

Workers are processes with addresses 10.0.0.1 and up; each has a port of its own and a connection to each peer.
Three rounds with more keys each, skewed so that some ranges get more than others.
"""

import random
import socket
import struct
import sys
import threading
from multiprocessing import Barrier, Process

FIRST_PORT = 9000
ROUNDS = (2_000, 8_000, 24_000)


def address(worker, hosts):
    return (f"10.0.0.{worker % hosts + 1}", FIRST_PORT + worker)


def receive(listener, count, into):
    for _ in range(count):
        peer, _ = listener.accept()
        with peer:
            data = bytearray()
            while chunk := peer.recv(1 << 16):
                data += chunk
            into.append(struct.unpack(f"!{len(data) // 8}d", data))


def worker(index, hosts, barrier):
    rng = random.Random(index)
    for keys in ROUNDS:
        with socket.create_server(address(index, hosts)) as listener:
            barrier.wait()
            parts = [[] for _ in range(hosts)]
            for _ in range(keys * (1 + index % 3)):
                key = rng.betavariate(2, 5)
                parts[min(int(key * hosts), hosts - 1)].append(key)
            got = [tuple(parts[index])]
            receiver = threading.Thread(target=receive, args=(listener, hosts - 1, got))
            receiver.start()
            for step in range(1, hosts):
                peer = (index + step) % hosts
                source = (address(index, hosts)[0], 0)
                with socket.create_connection(address(peer, hosts), source_address=source) as out:
                    out.sendall(struct.pack(f"!{len(parts[peer])}d", *parts[peer]))
            receiver.join()
            merged = sorted(key for part in got for key in part)
            assert all(index / hosts <= key for key in merged[:1])
            barrier.wait()


def main():
    hosts = int(sys.argv[1])
    barrier = Barrier(hosts)
    workers = [Process(target=worker, args=(n, hosts, barrier)) for n in range(hosts)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    sys.exit(any(process.exitcode for process in workers))


if __name__ == "__main__":
    main()
