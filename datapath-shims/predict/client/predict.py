#!/usr/bin/env python3
"""Asks a prediction server, as datapath-shims/docs/predict.md describes. Standard library only.

    predict.py HOST PORT [SLOT] < images      one image a line: its inputs, and after a colon what is true, if that is known
    echo "0 0 5 13 9 1 0 0 ... 0: 0" | predict.py 127.0.0.1 4434
"""

import socket
import struct
import sys

HEADER = struct.Struct("<4sBBBBQ")
MAGIC, VERSION, REQUEST, REPLY, FEEDBACK = b"CCPR", 1, 1, 2, 3
MESSAGE_BYTES = 48
PATIENCE_S = 1.0


class Client:
    def __init__(self, host, port, slot=0):
        kind = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        self.socket = socket.socket(kind[0], kind[1])
        self.socket.connect(kind[4])
        self.socket.settimeout(PATIENCE_S)
        self.slot, self.asked = slot, 0

    def ask(self, inputs):
        """Returns the class of the inputs and the reply, which `tell` takes. Raises TimeoutError if none comes."""
        self.asked += 1
        request = HEADER.pack(MAGIC, VERSION, REQUEST, self.slot, len(inputs), self.asked) + bytes(inputs)
        self.socket.send(request.ljust(MESSAGE_BYTES, b"\0"))
        while True:
            reply = self.socket.recv(MESSAGE_BYTES + 1)
            if len(reply) != MESSAGE_BYTES:
                continue
            magic, version, kind, _, answer, asked = HEADER.unpack_from(reply)
            if (magic, version, kind, asked) == (MAGIC, VERSION, REPLY, self.asked):
                return answer, reply

    def tell(self, reply, truth):
        """Says which class was true."""
        feedback = bytearray(reply)
        feedback[5], feedback[7] = FEEDBACK, truth
        self.socket.send(feedback)


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    client = Client(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) == 4 else 0)
    for line in sys.stdin:
        inputs, _, truth = line.partition(":")
        answer, reply = client.ask([int(number) for number in inputs.split()])
        print(answer, flush=True)
        if truth.strip():
            client.tell(reply, int(truth))


if __name__ == "__main__":
    main()
