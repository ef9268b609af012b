//! Virtual-time packet network
