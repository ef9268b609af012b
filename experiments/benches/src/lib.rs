//! The figures of ccplane bench
