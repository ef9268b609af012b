//! Runs flows over emulated links and collects what they did
