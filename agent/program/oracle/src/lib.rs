//! Differential tests of ccplane-program and ccplane-wire against the real libccp and portus
