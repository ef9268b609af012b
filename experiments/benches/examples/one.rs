fn main() { for f in ccplane_benches::run(&std::env::args().nth(1).unwrap()).unwrap() { println!("{f:?}"); } }
