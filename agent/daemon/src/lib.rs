//! The ccplane binary: agent daemon and command line
