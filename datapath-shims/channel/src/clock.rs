//! The clock of the agent and of Linux datapaths.

pub use ccplane_files::monotonic_us as now_us;
