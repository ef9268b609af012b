//! A QUIC datapath: quinn-proto driven under fold programs.
