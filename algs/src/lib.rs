//! Congestion control algorithms, one file each
