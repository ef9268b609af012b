//! A deterministic datapath in the virtual-time network
