//! The way between the agent and datapaths in other processes: a ring in shared memory, or a unix socket.
