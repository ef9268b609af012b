//! The QUIC datapath over DPDK ports.
