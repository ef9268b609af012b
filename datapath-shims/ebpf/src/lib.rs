//! Linux TCP datapath: fold programs compiled to BPF and run by struct_ops
